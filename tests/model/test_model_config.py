"""Configs: both layouts, defaults, and rejections with the field's name."""

import json
import re
from math import inf
from pathlib import Path
from typing import Any

import pytest

from tasuki.model.config import DenseShape, MoeShape
from tasuki.model.config_json import ModelConfigError, QuantizationConfig
from tasuki.model.layer_kind import LayerKind
from tests.harness.model_shapes import DENSE, MOE, dense_raw, moe_raw
from tests.harness.qwen35 import config_of, load_config

GDN, FULL = LayerKind.GDN, LayerKind.FULL


def write(folder: Path, config: object, generation: object = None) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation))
    return folder


def test_nested_equals_flat() -> None:
    nested = {"model_type": "qwen3_5", "text_config": dense_raw(), "vision_config": {"depth": 27}}
    config = config_of(nested)
    assert config.model_type == "qwen3_5"
    assert {**vars(config), "model_type": ""} == {**vars(DENSE), "model_type": ""}


def test_layer_types_win_over_the_interval() -> None:
    kinds = ["full_attention", "linear_attention", "linear_attention", "full_attention"]
    config = config_of(dense_raw() | {"layer_types": kinds})
    assert config.layer_kinds == (FULL, GDN, GDN, FULL)
    assert DENSE.layer_kinds == (GDN, FULL, GDN, FULL)


def test_published_shape_of_35b_a3b() -> None:
    """Slot and KV sizes as published engines compute them."""
    text = {
        "model_type": "qwen3_5_moe_text",
        "vocab_size": 248320,
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "num_key_value_heads": 2,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.25},
    }
    config = config_of({"model_type": "qwen3_5_moe", "text_config": text})
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    assert config.rotary_dim == 64
    assert config.rope_theta == 1e7
    assert config.feed_forward == MoeShape(256, 8, 512, 512)
    assert (len(layout.states), len(layout.regions)) == (30, 10)
    assert layout.page_bytes // 64 == 20 * 1024
    assert round(layout.slot_bytes / 2**20, 1) == 61.4


def test_cache_layout_shapes() -> None:
    layout = MOE.cache_layout("float32", "float32", "float32")
    shapes = {p.name: p.shape for cache in layout.layers for p in (*cache.page, *cache.slot)}
    assert shapes == {
        "kv": (2, 2, 64, 32),
        "conv": (2 * 2 * 16 + 6 * 24, 3),
        "ssm": (6, 24, 16),
    }
    assert [cache.kind for cache in layout.layers] == [kind.value for kind in MOE.layer_kinds]
    assert isinstance(DENSE.feed_forward, DenseShape)
    assert MOE.feed_forward == MoeShape(6, 2, 20, 28)


def test_eos_ids_come_from_every_file(tmp_path: Path) -> None:
    assert load_config(write(tmp_path, dense_raw())).eos_ids == (7,)
    folder = write(tmp_path, dense_raw(), {"eos_token_id": [9, 7]})
    assert load_config(folder).eos_ids == (7, 9)
    without = {key: value for key, value in dense_raw().items() if key != "eos_token_id"}
    assert config_of(without).eos_ids == ()


def test_tie_of_the_outer_config_wins() -> None:
    nested = moe_raw() | {"tie_word_embeddings": True}
    assert config_of(nested).tied
    assert not MOE.tied


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"model_type": "other"}, "model_type is 'other'"),
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"model_type": None}, "model_type is None"),
        ({"vocab_size": None}, "vocab_size is missing"),
        ({"hidden_size": "big"}, "hidden_size is 'big'"),
        ({"head_dim": 0}, "head_dim is 0"),
        ({"num_hidden_layers": True}, "num_hidden_layers is True"),
        (
            {"num_hidden_layers": 10**9},
            "num_hidden_layers is 1000000000; use a positive integer, at ",
        ),
        ({"hidden_size": 10**12}, "hidden_size is 1000000000000; use a positive integer, at most"),
        ({"layer_types": ["linear_attention"]}, "layer_types does not list"),
        ({"layer_types": ["sliding_attention"] * 4}, "layer_types holds a kind"),
        ({"layer_types": ["linear_attention"] * 4}, "layer_types holds no full_attention"),
        ({"layer_types": ["full_attention"] * 4}, "layer_types holds no linear_attention"),
        ({"num_attention_heads": 3}, "num_attention_heads is no multiple"),
        ({"linear_num_value_heads": 5}, "linear_num_value_heads is no multiple"),
        ({"linear_conv_kernel_dim": 1}, "linear_conv_kernel_dim is below 2"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor makes 48"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1"),
        ({"rms_norm_eps": inf}, "rms_norm_eps is inf"),
        ({"rope_theta": 10**400}, "rope_theta is 1000"),
        ({"partial_rotary_factor": inf}, "partial_rotary_factor is inf"),
        ({"tie_word_embeddings": "false"}, "tie_word_embeddings is 'false'"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_parameters.rope_type is 'linear'"),
        ({"rope_parameters": [1]}, "rope_parameters is not an object"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"attn_output_gate": False}, "attn_output_gate is False"),
        ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'"),
        ({"eos_token_id": [3, True]}, "eos_token_id is [3, True]"),
        ({"eos_token_id": 10**20}, "eos_token_id is 1000"),
        ({"text_config": 3}, "text_config is not an object"),
        ({"text_config": {"model_type": "other"}}, "model_type is 'other'"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], field: str) -> None:
    with pytest.raises(ModelConfigError, match=re.escape(f"here: {field}")) as caught:
        config_of(dense_raw() | change, source="here")
    assert "; " in str(caught.value)


def test_more_experts_chosen_than_there_are() -> None:
    raw = moe_raw()
    raw["text_config"]["num_experts_per_tok"] = 7
    with pytest.raises(ModelConfigError, match="num_experts_per_tok exceeds num_experts"):
        config_of(raw)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"norm_topk_prob": False}, "norm_topk_prob is False; only True"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]; only \[\]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2; only 1"),
    ],
)
def test_experts_that_are_not_computed_as_the_config_has_them(
    change: dict[str, Any], field: str
) -> None:
    raw = moe_raw()
    raw["text_config"] |= {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 1}
    assert config_of(raw) == MOE
    raw["text_config"] |= change
    with pytest.raises(ModelConfigError, match=field):
        config_of(raw)
    assert config_of(dense_raw() | change) == DENSE


def test_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(ModelConfigError, match=r"config\.json: cannot be read"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ModelConfigError, match=r"config\.json: is not JSON"):
        load_config(tmp_path)
    (tmp_path / "config.json").write_text("[" * 100_000)
    with pytest.raises(ModelConfigError, match=r"config\.json: is nested too deep"):
        load_config(tmp_path)
    assert QuantizationConfig.load(tmp_path) == QuantizationConfig()
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ModelConfigError, match=r"config\.json: holds no JSON object"):
        load_config(tmp_path)
