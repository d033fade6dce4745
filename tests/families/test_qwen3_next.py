"""Qwen3-Next: its config, its rows in Qwen3.5's order, in ranks and in FP8, and the numbers of its
goldens beside the tokens of the suite."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ModelConfigError
from tasuki.model.families import loading, registry
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import ModelWeights
from tasuki.model.forward import Batch
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.model.weights.layers import GdnWeights, tensors
from tasuki.model.weights.matrix import WHOLE, Kind, Part, WeightsError
from tasuki.model.weights.shard import ExpertCut, Shard
from tasuki.model.weights.source import RandomSource
from tests.harness.goldens import BESIDE, Request, Workspace, cases_of, final_hidden, logits_of
from tests.harness.model_shapes import next_raw

RAW = next_raw()
WHOLE_BLOCKS = RAW | {
    "hidden_size": 128,
    "head_dim": 64,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "moe_intermediate_size": 128,
    "shared_expert_intermediate_size": 128,
}
SET = "qwen3-next-tiny"
needs_goldens = pytest.mark.skipif(
    not (BESIDE / SET).is_dir(), reason=f"../shared/reference/{SET} is not there"
)


class Recorder(RandomSource):
    """Random tensors, kept under the names by which published files have them."""

    def __init__(self) -> None:
        super().__init__(3)
        self.tensors: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        # Published experts are split.
        return not name.endswith("experts.gate_up_proj") and ".gate_proj.0." not in name

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        tensor = super().read(name, shape, dtype, part)
        outside = name.startswith(("lm_head.", "mtp."))
        self.tensors[name if outside else f"model.{name}"] = tensor
        return tensor


def write(folder: Path, raw: dict[str, Any]) -> dict[str, Tensor]:
    """Write a checkpoint of random weights, and return its tensors."""
    config, recorder = replace(registry.config_of(raw), draft_layers=1), Recorder()
    loading.assemble(config, recorder, torch.float32)
    folder.mkdir()
    save_file(recorder.tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return recorder.tensors


def in_order_of_parts(raw: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors as Qwen3.5 publishes them, moved head by head."""
    heads, key, value = (
        raw[f"linear_{name}"] for name in ("num_key_heads", "key_head_dim", "value_head_dim")
    )
    ratio = raw["linear_num_value_heads"] // heads
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".in_proj_")
        if leaf == "qkvz.weight":
            parts: list[list[Tensor]] = [[], [], [], []]
            for group in tensor.chunk(heads):
                q, k, v, z = group.split([key, key, ratio * value, ratio * value])
                for part, rows in zip(parts, (q, k, v, z), strict=True):
                    part.append(rows)
            found[f"{module}.in_proj_qkv.weight"] = torch.cat([*parts[0], *parts[1], *parts[2]])
            found[f"{module}.in_proj_z.weight"] = torch.cat(parts[3])
        elif leaf == "ba.weight":
            groups = [group.chunk(2) for group in tensor.chunk(heads)]
            for place, part in enumerate("ba"):
                found[f"{module}.in_proj_{part}.weight"] = torch.cat([g[place] for g in groups])
        else:
            found[name] = tensor
    return found


def weights_of(folder: Path, shard: Shard | None = None) -> ModelWeights:
    config = replace(registry.load_config(folder), draft_layers=1)
    weights = loading.load_weights(folder, config, torch.float32, shard=shard)
    assert isinstance(weights, ModelWeights)
    return weights


def equal(one: object, other: object) -> bool:
    pairs = zip(tensors(one), tensors(other), strict=True)
    return all(torch.equal(left, right) for left, right in pairs)


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Return a checkpoint of the family, and one of Qwen3.5 that computes the same."""
    own = write(tmp_path / "own", RAW)
    other = tmp_path / "other"
    other.mkdir()
    moved = {name: rows.contiguous() for name, rows in in_order_of_parts(RAW, own).items()}
    save_file(moved, other / "model.safetensors")
    raw = RAW | {"model_type": "qwen3_5_moe_text"}
    (other / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    return tmp_path / "own", other


def test_weights_are_those_of_the_other_order(folders: tuple[Path, Path]) -> None:
    own, other = map(weights_of, folders)
    assert own.draft is not None and equal(own, other)


@pytest.mark.parametrize("experts", list(ExpertCut))
def test_ranks_have_the_same_parts(folders: tuple[Path, Path], experts: ExpertCut) -> None:
    for rank in range(2):
        own, other = (weights_of(folder, Shard(rank, 2, experts)) for folder in folders)
        assert equal(own, other)


def test_fp8_blocks_move_with_their_scales(tmp_path: Path) -> None:
    write(tmp_path / "plain", WHOLE_BLOCKS)
    quantise_folder(tmp_path / "plain", tmp_path / "fp8", RECIPES["fp8"])
    stored = load_file(tmp_path / "fp8" / "model.safetensors")
    name = "model.layers.0.linear_attn.in_proj_qkvz.weight"
    assert stored[name].dtype is torch.float8_e4m3fn
    scales = stored[f"{name}_scale_inv"].float()
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    exact = {name: stored[name].float() * wide}
    moved = in_order_of_parts(WHOLE_BLOCKS, exact).values()
    want = torch.cat([*moved])
    mixer = weights_of(tmp_path / "fp8").layers[0].mixer
    assert isinstance(mixer, GdnWeights)
    assert mixer.in_proj.kinds == {Kind.FP8_BLOCK, Kind.PLAIN}
    assert torch.equal(mixer.in_proj.dequantised(torch.float32)[: len(want)], want)
    halves = []
    for rank in range(2):
        part = weights_of(tmp_path / "fp8", Shard(rank, 2)).layers[0].mixer
        assert isinstance(part, GdnWeights)
        halves.append(part.in_proj.dequantised(torch.float32))
    key, value = 128, 256
    for size, begin in ((key, 0), (key, 2 * key), (value, 4 * key), (value, 4 * key + 2 * value)):
        first = begin // 2
        both = torch.cat([half[first : first + size] for half in halves])
        assert torch.equal(both, want[begin : begin + 2 * size])


def test_fp8_blocks_across_heads_are_refused(tmp_path: Path) -> None:
    raw = WHOLE_BLOCKS | {"linear_key_head_dim": 64}
    write(tmp_path / "plain", raw)
    quantise_folder(tmp_path / "plain", tmp_path / "fp8", RECIPES["fp8"])
    with pytest.raises(WeightsError, match="128 of them have one scale: serve the checkpoint in"):
        weights_of(tmp_path / "fp8")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"text_config": {}, "vocab_size": 160}, "text_config is an object"),
        ({"rope_theta": None}, "rope_theta is missing"),
        ({"rope_parameters": {"rope_theta": 1e7, "mrope_section": [1]}}, "mrope_section is given"),
        ({"mlp_only_layers": [0]}, r"mlp_only_layers is \[0\]"),
        ({"decoder_sparse_step": 2}, "decoder_sparse_step is 2"),
        ({"norm_topk_prob": False}, "norm_topk_prob is False"),
        ({"num_experts": 0}, "num_experts is 0"),
        ({"attention_bias": True}, "attention_bias is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'"),
        ({"rope_scaling": {"rope_type": "linear", "rope_theta": 1.0}}, "rope_type is 'linear'"),
        ({"full_attention_interval": 1}, "layer_types holds no linear_attention"),
    ],
)
def test_refusals_name_the_field(change: dict[str, Any], field: str) -> None:
    raw = {name: value for name, value in (RAW | change).items() if value is not None}
    with pytest.raises(ModelConfigError, match=field):
        registry.config_of(raw)


def test_published_names() -> None:
    names = ("qwen3-next-80b-a3b", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", "Qwen/Qwen3-Coder-Next")
    for name in names:
        config = registry.published_or_folder(name)
        assert isinstance(config, DeltaNetConfig) and config.layers == 48
        layout = config.cache_layout("bfloat16", "bfloat16", "float32")
        assert layout.page_bytes == 64 * 24 * 1024
        assert registry.with_draft_layer(config, name, "auto").draft_layers == 1
    total = registry.family_of(config).prefill_flops(config).linear / 2
    assert 3.0e9 < total < 4.0e9, "3 billion parameters a token, and the delta rule"


def golden_model() -> Qwen35Model:
    folder = BESIDE / SET
    config = replace(registry.load_config(folder), draft_layers=1)
    model = loading.build_model(config, loading.load_weights(folder, config, torch.float32))
    assert isinstance(model, Qwen35Model)
    return model


@needs_goldens
def test_goldens_numbers() -> None:
    model, checked = golden_model(), 0
    for case in cases_of(SET).values():
        request = Request(Workspace(model), len(case.prompt) + 2)
        length = len(case.prompt)
        batch = Batch.pack([request.slice(case.prompt)])
        final = final_hidden(model, batch, request.workspace.arena)
        wanted = {
            "hidden.final_norm": (final, case.tolerance["fp32_hidden_abs"]),
            "logits": (logits_of(model, final), case.tolerance["fp32_logits_abs"]),
        }
        arena, slot = request.workspace.arena, request.slots[0]
        for layer in range(3):
            state = f"at{length}.layer{layer}"
            conv, ssm = (arena.view(layer, part)[slot] for part in ("conv", "ssm"))
            recurrent = ssm.transpose(1, 2)
            wanted[f"{state}.conv"] = (conv, case.tolerance["fp32_conv_abs"])
            wanted[f"{state}.recurrent"] = (recurrent, case.tolerance["fp32_recurrent_abs"])
        for array, (got, tolerance) in wanted.items():
            if array in case.arrays:
                torch.testing.assert_close(got, case.tensor(array), atol=tolerance, rtol=0)
                checked += 1
    assert checked >= 10


@needs_goldens
def test_goldens_of_the_draft_layer() -> None:
    model, checked = golden_model(), 0
    for case in cases_of(SET).values():
        if "mtp_last_logits" not in case.arrays or len(case.prompt) < 2:
            continue
        request = Request(Workspace(model), len(case.prompt) + 2)
        request.forward(case.prompt)
        hidden = model.carried(request.workspace.arena)[request.slots[0]]
        item = request.slice(case.greedy[:1])
        logits, _ = model.draft_logits(
            hidden.unsqueeze(0), Batch.pack([item]), request.workspace.arena
        )
        torch.testing.assert_close(logits[0], case.tensor("mtp_last_logits"), atol=1e-3, rtol=0)
        checked += 1
    assert checked >= 2
