"""What is said of Qwen4-Exp before it runs: sizes, costs, the memory plan, refusals."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.model.config_json import ConfigFile
from tasuki.model.costs import ShapesOnly
from tasuki.model.families.family import NoKernels
from tasuki.model.families.loading import load_weights, read_tables
from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig
from tasuki.model.families.qwen4_exp.costs import prefill_flops, weight_sizes
from tasuki.model.families.qwen4_exp.reader import read_config
from tasuki.server.daemon.dry_run import dry_run
from tasuki.server.daemon.serve_config import DryRunConfig
from tests.families.test_qwen4_config import PUBLISHED
from tests.harness.qwen4_models import config_of, odd_raw, write_model


def published() -> Qwen4ExpConfig:
    return read_config(ConfigFile.of({"model_type": "qwen4_exp", "text_config": PUBLISHED}))


def test_the_published_shape_has_the_published_parameters() -> None:
    sizes = weight_sizes(published(), torch.bfloat16, ShapesOnly())
    assert sizes.tables == 320_001_536 * 160 * 2
    assert sizes.total / 2 == pytest.approx(125.7e9, rel=0.001)
    assert (sizes.experts, sizes.chosen) == (512, 10)
    # The bytes of a step of one token: 8.61 GB beside experts, if those are in FP8 a quarter.
    assert sizes.routed == 48 * 512 * 3 * 2560 * 640 * 2


def test_a_request_of_the_published_shape_carries_the_published_bytes() -> None:
    layout = published().cache_layout("bfloat16", "bfloat16", "float32")
    assert layout.block_bytes == 135_168
    assert layout.page_bytes / 64 == 24.75 * 1024
    assert layout.slot_bytes / 2**20 == pytest.approx(110.3, abs=0.05)
    assert layout.blocks_per_slab == 856
    assert layout.pages_per_slab == 71


def test_sparse_attention_costs_little_more_behind_a_long_prompt() -> None:
    flops, config = prefill_flops(published()), published()
    assert flops.quadratic == 2 * 12 * 4 * 128 / 4
    dense = 4 * 12 * config.query_heads * config.head_dim
    assert dense / flops.quadratic == 96
    assert flops.linear == pytest.approx(12.4e9, rel=0.1)


def test_the_dry_run_plans_a_cpu_and_names_the_table(tmp_path: Path) -> None:
    write_model(tmp_path, odd_raw())
    tables = config_of(tmp_path).tables
    size = sum(table.rows * table.dim * 4 for table in tables)
    for place, words in (("disk", "mapped from their files"), ("host", "read into memory")):
        config = EngineConfig(str(tmp_path), dtype="float32", ngram_table=place)
        text = dry_run(config, DryRunConfig())
        assert "Qwen4-Exp has no kernels for GPUs" in text
        assert "index [8, 24]; a slot has" in text and "ple_window [144, 8]" in text
        assert f"n-gram tables                 {size / 2**20:>10.0f} MiB  {words}" in text
        assert f"(--ngram-table {place})" in text
    plain = tmp_path / "plain"
    write_model(plain, odd_raw(ple_layer_ids=[]))
    assert "n-gram" not in dry_run(EngineConfig(str(plain), dtype="float32"), DryRunConfig())


def test_a_gpu_is_refused_by_the_familys_name(tmp_path: Path) -> None:
    write_model(tmp_path, odd_raw())
    with pytest.raises(NoKernels, match="Qwen4-Exp has no kernels for cuda"):
        build_parts(EngineConfig(str(tmp_path), device="cuda"))


def test_a_checkpoint_with_a_tower_is_served_as_text(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tensors = write_model(tmp_path, odd_raw())
    tensors["model.visual.blocks.0.norm1.weight"] = torch.ones(4)
    save_file(tensors, tmp_path / "m.safetensors")
    vision = {"model_type": "qwen4_exp_vision", "depth": 27}
    raw = {"model_type": "qwen4_exp", "text_config": odd_raw(), "vision_config": vision}
    (tmp_path / "config.json").write_text(json.dumps(raw))
    (tmp_path / "preprocessor_config.json").write_text("{}")
    parts = build_parts(EngineConfig(str(tmp_path), dtype="float32", arena_mib=16))
    assert parts.sight is None and parts.tower is None
    assert "pictures of Qwen4-Exp are not computed as yet" in caplog.text


def test_tables_are_read_ahead_page_by_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_model(tmp_path, odd_raw())
    weights = load_weights(tmp_path, config_of(tmp_path), torch.float32)
    assert len(weights.tables) == 2 * 3
    with caplog.at_level("INFO"):
        read_tables(weights)
    assert "tables: 0.00 GiB read" in caplog.text
