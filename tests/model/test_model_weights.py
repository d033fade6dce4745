"""Checkpoint folders: name layouts, shards, experts, digests, and damage reported by name."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import ModelWeights, assemble, random_weights
from tasuki.model.weights.copied_files import CopiedFile, CopiedTensors
from tasuki.model.weights.matrix import WHOLE, Part, WeightsError
from tasuki.model.weights.safetensors_files import SafetensorsFile
from tasuki.model.weights.safetensors_folder import (
    Checkpoint,
    has_draft_layer,
    weight_files,
    weights_digest,
)
from tasuki.model.weights.source import PlainSource, RandomSource
from tests.harness.goldens import Request, Workspace
from tests.harness.model_shapes import DENSE, MOE
from tests.harness.qwen35 import load_weights

FILE = "model.safetensors"


class Recorder(PlainSource):
    """A source that keeps its tensors under a checkpoint's names."""

    def __init__(self, prefix: str, fused: bool) -> None:
        self._source = RandomSource(3)
        self._prefix = prefix
        self._fused = fused
        self.tensors: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        return self._fused

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        tensor = self._source.read(name, shape, dtype, part)
        full = name if name == "lm_head.weight" else self._prefix + name
        self.tensors[full] = tensor.clone()
        return tensor


def published(
    config: DeltaNetConfig, prefix: str = "model.", fused: bool = True
) -> dict[str, Tensor]:
    recorder = Recorder(prefix, fused)
    assemble(config, recorder, torch.float32)
    return recorder.tensors


def logits(config: DeltaNetConfig, weights: ModelWeights) -> Tensor:
    return Request(Workspace(Qwen35Model(config, weights)), 64).forward([3, 1, 4, 1, 5, 9])


def load(folder: Path, config: DeltaNetConfig) -> ModelWeights:
    return load_weights(folder, config, torch.float32)


def assert_loads_as_random_weights(folder: Path, config: DeltaNetConfig) -> None:
    want = logits(config, random_weights(config, 3, torch.float32))
    torch.testing.assert_close(logits(config, load(folder, config)), want, atol=1e-3, rtol=0)


def save_in_shards(tensors: dict[str, Tensor], folder: Path) -> dict[str, str]:
    """Save in three files; return the file of each tensor by name."""
    where: dict[str, str] = {}
    for shard in range(3):
        mine = sorted(tensors)[shard::3]
        file = f"model-0000{shard + 1}-of-00003.safetensors"
        save_file({name: tensors[name] for name in mine}, folder / file)
        where |= dict.fromkeys(mine, file)
    return where


@pytest.mark.parametrize("config", [DENSE, MOE], ids=["dense", "moe"])
@pytest.mark.parametrize("prefix", ["model.", "model.language_model."])
def test_both_name_layouts(config: DeltaNetConfig, prefix: str, tmp_path: Path) -> None:
    extra = {"model.visual.patch.weight": torch.zeros(2), "mtp.fc.weight": torch.zeros(2)}
    save_file(published(config, prefix) | extra, tmp_path / FILE)
    assert_loads_as_random_weights(tmp_path, config)


@pytest.mark.parametrize("outer", ["", "language_model."])
def test_a_language_model_beside_a_tower(outer: str, tmp_path: Path) -> None:
    """Some exports name the whole model before the text model; their head is beside the text
    model."""
    prefix = "language_model.model."
    tensors = published(DENSE, prefix)
    tensors[f"{outer}lm_head.weight"] = tensors.pop("lm_head.weight")
    tensors[f"{outer}mtp.fc.weight"] = torch.zeros(2)
    save_file(tensors | {"visual.patch.weight": torch.zeros(2)}, tmp_path / FILE)
    assert_loads_as_random_weights(tmp_path, DENSE)
    assert has_draft_layer(tmp_path)
    name = f"{outer}lm_head.weight_scale_inv"
    save_file(tensors | {name: torch.ones(1)}, tmp_path / FILE)
    with pytest.raises(WeightsError, match=name):
        load(tmp_path, DENSE)


def test_a_tensor_of_two_files_is_named_with_both(tmp_path: Path) -> None:
    """Whichever is read, it may be the wrong one."""
    tensors = published(DENSE)
    save_file(tensors, tmp_path / FILE)
    other = {"model.norm.weight": tensors["model.norm.weight"] + 1}
    save_file(other, tmp_path / "older.safetensors")
    named = r"older\.safetensors: tensor model\.norm\.weight is in model\.safetensors too"
    with pytest.raises(WeightsError, match=named):
        load(tmp_path, DENSE)


def test_split_experts_equal_fused(tmp_path: Path) -> None:
    split = published(MOE, fused=False)
    fused = {name: tensor for name, tensor in split.items() if ".experts." not in name}
    for layer in range(MOE.layers):
        base = f"model.layers.{layer}.mlp.experts"

        def stack(name: str, base: str = base) -> Tensor:
            return torch.stack([split[f"{base}.{i}.{name}_proj.weight"] for i in range(6)])

        fused[f"{base}.gate_up_proj"] = torch.cat([stack("gate"), stack("up")], dim=1)
        fused[f"{base}.down_proj"] = stack("down")
    results = []
    for name, tensors in (("split", split), ("fused", fused)):
        (tmp_path / name).mkdir()
        save_file(tensors, tmp_path / name / FILE)
        results.append(logits(MOE, load(tmp_path / name, MOE)))
    torch.testing.assert_close(*results, atol=1e-3, rtol=0)


@pytest.mark.parametrize("indexed", [True, False])
def test_shards(indexed: bool, tmp_path: Path) -> None:
    where = save_in_shards(published(DENSE), tmp_path)
    if indexed:
        index = tmp_path / "model.safetensors.index.json"
        index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    assert_loads_as_random_weights(tmp_path, DENSE)


def test_tied_head_is_the_embedding(tmp_path: Path) -> None:
    config = DeltaNetConfig(**{**vars(DENSE), "tied": True})
    tensors = published(config)
    assert "lm_head.weight" not in tensors
    save_file(tensors, tmp_path / FILE)
    weights = load(tmp_path, config)
    assert weights.head.plain is weights.embedding


def test_decay_and_norms_stay_float32(tmp_path: Path) -> None:
    save_file(published(DENSE), tmp_path / FILE)
    weights = load_weights(tmp_path, DENSE, torch.bfloat16)
    mixer = weights.layers[0].mixer
    assert weights.dtype is mixer.in_proj.plain.dtype is torch.bfloat16
    exact = load(tmp_path, DENSE).layers[0]
    assert torch.equal(vars(mixer)["decay_rate"], vars(exact.mixer)["decay_rate"])
    assert torch.equal(weights.layers[0].mixer_norm, exact.mixer_norm)


def test_random_weights_follow_the_seed() -> None:
    first, again, other = (random_weights(DENSE, seed, torch.float32) for seed in (1, 1, 2))
    assert torch.equal(first.embedding, again.embedding)
    assert not torch.equal(first.embedding, other.embedding)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        ("model.layers.1.self_attn.k_norm.weight", None, "k_norm.weight is missing"),
        ("lm_head.weight", None, "lm_head.weight is missing"),
        ("model.embed_tokens.weight", None, "embed_tokens.weight is missing"),
        (
            "model.layers.0.linear_attn.conv1d.weight",
            torch.zeros(208, 4),
            r"conv1d.weight has shape \[208, 4\], config.json wants \[208, 1, 4\]",
        ),
        (
            "model.layers.0.mlp.up_proj.weight",
            torch.zeros(80, 48, dtype=torch.float8_e4m3fn),
            "up_proj.weight has dtype F8_E4M3",
        ),
    ],
)
def test_misfits_name_the_tensor(
    name: str, tensor: Tensor | None, message: str, tmp_path: Path
) -> None:
    tensors = published(DENSE)
    del tensors[name]
    save_file(tensors | ({} if tensor is None else {name: tensor}), tmp_path / FILE)
    with pytest.raises(WeightsError, match=message):
        load(tmp_path, DENSE)


@pytest.mark.parametrize(
    "damage",
    [
        *(lambda content, keep=keep: content[:keep] for keep in (0, 5, 300, -8)),
        lambda content: content[:8] + b"x" * 12 + content[20:],
    ],
    ids=["empty", "5 bytes", "300 bytes", "8 bytes fewer", "another header"],
)
def test_a_damaged_file_is_named(damage: Callable[[bytes], bytes], tmp_path: Path) -> None:
    save_file(published(DENSE), tmp_path / FILE)
    (tmp_path / FILE).write_bytes(damage((tmp_path / FILE).read_bytes()))
    with pytest.raises(WeightsError, match=r"model.safetensors: is truncated or corrupt"):
        Checkpoint(tmp_path)


@pytest.mark.parametrize(
    "described",
    [
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0.0, 8.0]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": ["0", "8"]}}',
        b'{"a": {"dtype": "F32", "shape": [2.5], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [-2], "data_offsets": [0, 8]}}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [8, 16]}}',
        b'{"a": 5}',
        b"[5]",
        b"[" * 100_000,
    ],
)
def test_a_header_that_describes_no_tensor_is_damage(described: bytes, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(len(described).to_bytes(8, "little") + described + bytes(8))
    with pytest.raises(WeightsError, match=r"model.safetensors: is truncated or corrupt"):
        SafetensorsFile(tmp_path / FILE)


@pytest.mark.parametrize("part", [(slice(2, 5),), (slice(None), slice(0, 7)), (slice(1, 2),) * 2])
def test_a_part_is_what_the_whole_tensor_has_there(part: Part, tmp_path: Path) -> None:
    name, shape = "layers.0.mlp.down_proj.weight", (DENSE.hidden, 80)
    save_file(published(DENSE), tmp_path / FILE)
    with Checkpoint(tmp_path) as source:
        for reader in (source, RandomSource(3)):
            whole = reader.read(name, shape, torch.float32)
            got = reader.read(name, shape, torch.float32, part)
            assert torch.equal(got, whole[part]) and got.is_contiguous()
        with pytest.raises(WeightsError, match=r"config\.json wants"):
            source.read(name, (5, 80), torch.float32, (slice(0, 5),))


def test_every_file_is_opened_once_and_closed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_in_shards(published(DENSE), tmp_path)
    opened: list[Path] = []

    class Counted(CopiedFile):
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    monkeypatch.setattr(CopiedTensors, "OPENS", Counted)
    load(tmp_path, DENSE)
    assert opened == weight_files(tmp_path)
    with pytest.raises(WeightsError, match="wants"):
        load(tmp_path, replace(DENSE, vocab=DENSE.vocab + 1))
    # No mapping keeps the pages of converted tensors.
    assert str(tmp_path) not in Path("/proc/self/maps").read_text()
    (tmp_path / "model-9.safetensors").write_bytes(b"")
    with pytest.raises(WeightsError, match=r"model-9\.safetensors: is truncated"):
        load(tmp_path, DENSE)


def test_a_closed_checkpoint_reads_nothing(tmp_path: Path) -> None:
    save_file(published(DENSE), tmp_path / FILE)
    with Checkpoint(tmp_path) as source:
        source.close()
    with pytest.raises(WeightsError):
        source.read("norm.weight", (DENSE.hidden,), torch.float32)


def test_absent_files(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=r"holds no \*.safetensors file"):
        load(tmp_path, DENSE)
    index = tmp_path / "model.safetensors.index.json"
    deep = "[" * 100_000
    for damaged in ("{", "{}", "[]", '{"weight_map": ["a"]}', '{"weight_map": {"a": ["b"]}}', deep):
        index.write_text(damaged)
        with pytest.raises(WeightsError, match="has no readable weight_map"):
            load(tmp_path, DENSE)
    index.write_text(json.dumps({"weight_map": {"a": "gone.safetensors"}}))
    with pytest.raises(WeightsError, match=r"gone\.safetensors: cannot be read"):
        load(tmp_path, DENSE)


def test_digest_follows_content(tmp_path: Path) -> None:
    tensors = published(DENSE)
    digests = []
    for name, change in (("a", 0.0), ("b", 0.0), ("c", 1e-3)):
        (tmp_path / name).mkdir()
        tensors["model.norm.weight"][0] += change
        save_file(tensors, tmp_path / name / FILE)
        digests.append(weights_digest(tmp_path / name))
    assert digests[0] == digests[1] != digests[2]
    assert len(digests[0]) == 64
    with pytest.raises(WeightsError, match="holds no"):
        weights_digest(tmp_path)
