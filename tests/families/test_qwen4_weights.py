"""Weights of Qwen4-Exp by their published names: experts and table in FP8, hash constants."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.families.qwen4_exp.table.rows import shard_lengths
from tasuki.model.weights.matrix import WeightsError
from tests.harness.qwen4_models import OwnSequence, config_of, load_model, odd_raw, write_model

PREFIX = "model.language_model."
TABLE = "layers.1.ple.ple_embedding."
E4M3 = torch.float8_e4m3fn


def quantised(tensors: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Return published tensors with split experts and tables in FP8, and the same numbers in
    float32 with fused experts."""
    coded: dict[str, Tensor] = {}
    plain: dict[str, Tensor] = {}
    for name, values in tensors.items():
        if "ngram_embedding" in name:
            module = name.split(".shard")[0]
            scale = torch.tensor([0.03125], dtype=torch.bfloat16)
            coded[name] = (values / scale.float()).to(E4M3)
            coded[f"{module}.weight_scale"] = scale
            plain[name] = coded[name].float() * scale.float()
        elif "experts.down_proj" in name or "experts.gate_up_proj" in name:
            module, leaf = name.rsplit(".", 1)
            whole = []
            for expert, own in enumerate(values):
                parts = {"down_proj": own}
                if leaf == "gate_up_proj":
                    parts = dict(zip(("gate_proj", "up_proj"), own.chunk(2), strict=True))
                rounded = []
                for part, numbers in parts.items():
                    codes = (numbers / 0.0078125).to(E4M3)
                    coded[f"{module}.{expert}.{part}.weight"] = codes
                    scale = torch.full((1, 1), 0.0078125, dtype=torch.bfloat16)
                    coded[f"{module}.{expert}.{part}.weight_scale_inv"] = scale
                    rounded.append(codes.float() * 0.0078125)
                whole.append(torch.cat(rounded))
            plain[name] = torch.stack(whole)
        else:
            coded[name] = plain[name] = values
    return coded, plain


def test_fp8_experts_and_tables_give_the_dequantised_answers(tmp_path: Path) -> None:
    tensors = write_model(tmp_path / "source", odd_raw())
    coded, plain = quantised(tensors)
    logits = []
    for name, own in (("coded", coded), ("plain", plain)):
        folder = tmp_path / name
        folder.mkdir()
        raw = odd_raw()
        if name == "coded":
            raw["quantization_config"] = {
                "quant_method": "fp8",
                "weight_block_size": [128, 128],
            }
        (folder / "config.json").write_text(json.dumps(raw))
        save_file({key: value.contiguous() for key, value in own.items()}, folder / "m.safetensors")
        model = load_model(folder)
        logits.append(OwnSequence(model).forward([3, 9, 5, 4, 8, 7] * 6))
        table = model.weights.layers[1].table
        assert table is not None
        assert table.table.shards[0].dtype == (E4M3 if name == "coded" else torch.float32)
    assert float((logits[0] - logits[1]).abs().max()) < 1e-4


def test_a_table_is_a_view_of_the_file(tmp_path: Path) -> None:
    write_model(tmp_path, odd_raw())
    model = load_model(tmp_path, torch.bfloat16)
    table = model.weights.layers[1].table
    assert table is not None
    # Stored as float32 and served as bfloat16: no converted copy was made.
    assert {shard.dtype for shard in table.table.shards} == {torch.float32}
    ids = torch.tensor([[0, 130], [383, 129]])
    whole = torch.cat(table.table.shards)
    assert torch.equal(table.table.rows(ids, torch.float32), whole[ids].flatten(1))


@pytest.mark.parametrize(
    "leaf", ["layer_multipliers", "ngram_heads_vocab_sizes", "ngram_heads_offsets"]
)
def test_other_hash_constants_in_the_checkpoint_are_refused(tmp_path: Path, leaf: str) -> None:
    tensors = write_model(tmp_path, odd_raw())
    load_model(tmp_path)
    tensors[f"{PREFIX}{TABLE}{leaf}"][-1] += 2
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=leaf):
        load_model(tmp_path)


def test_a_shard_of_another_length_is_refused(tmp_path: Path) -> None:
    tensors = write_model(tmp_path, odd_raw())
    name = f"{PREFIX}{TABLE}ngram_embedding.shard_1.weight"
    tensors[name] = tensors[name][1:].contiguous()
    save_file(tensors, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match=r"shard_1\.weight has shape"):
        load_model(tmp_path)


def test_codes_without_their_scale_are_refused(tmp_path: Path) -> None:
    coded, _ = quantised(write_model(tmp_path, odd_raw()))
    del coded[f"{PREFIX}{TABLE}ngram_embedding.weight_scale"]
    save_file({key: value.contiguous() for key, value in coded.items()}, tmp_path / "m.safetensors")
    with pytest.raises(WeightsError, match="weight_scale does not fit"):
        load_model(tmp_path)


def test_the_last_shard_has_the_rest() -> None:
    assert list(shard_lengths(10, 4)) == [3, 3, 3, 1]
    assert list(shard_lengths(320_001_536, 128)) == [2_500_012] * 128
    assert list(shard_lengths(9, 6)) == [2, 2, 2, 2, 1]


def test_a_written_model_is_read_by_its_config(tmp_path: Path) -> None:
    write_model(tmp_path, odd_raw())
    assert config_of(tmp_path).hidden == 48
