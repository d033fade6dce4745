"""Loading a checkpoint of as many small tensors as the published FP8 mixtures have."""

import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.quantise.checkpoint import RECIPES, quantise_folder
from tasuki.model.weights.copied_files import CopiedFile, CopiedTensors
from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.source import RandomSource
from tests.harness.model_shapes import moe_raw
from tests.harness.qwen35 import config_of, load_weights

LAYERS, EXPERTS = 40, 256
CONFIG = replace(
    config_of(
        moe_raw()["text_config"]
        | {"num_hidden_layers": LAYERS, "num_experts": EXPERTS, "full_attention_interval": 4}
    ),
    draft_layers=1,
)


class Split(RandomSource):
    """A source that keeps its tensors, experts one by one, under a checkpoint's names."""

    def __init__(self) -> None:
        super().__init__(3)
        self.tensors: dict[str, Tensor] = {}

    def has(self, name: str) -> bool:
        return False

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        tensor = super().read(name, shape, torch.bfloat16, part)
        outer = name.startswith(("lm_head", "mtp"))
        self.tensors[name if outer else f"model.{name}"] = tensor.clone()
        return tensor.to(dtype)


def write(folder: Path) -> None:
    """Write a file per layer, one for the embedding, one for norm, head and draft layer."""
    source = Split()
    assemble(CONFIG, source, torch.float32)
    (folder / "config.json").write_text("{}")
    left = source.tensors
    parts = ["embed_tokens", *(f"model.layers.{layer}." for layer in range(LAYERS)), ""]
    for number, part in enumerate(parts):
        mine = {name: left.pop(name) for name in [*left] if part in name}
        save_file(mine, folder / f"model-{number:05d}-of-00042.safetensors")


@pytest.mark.slow
def test_tens_of_thousands_of_tensors_load_in_hardly_more_than_reading_each_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, made = tmp_path / "plain", tmp_path / "fp8"
    plain.mkdir()
    write(plain)
    quantise_folder(plain, made, RECIPES["fp8"])
    files = sorted(made.glob("*.safetensors"))
    opened: list[Path] = []

    class Counted(CopiedFile):
        def __init__(self, path: Path) -> None:
            opened.append(path)
            super().__init__(path)

    began, count = time.process_time(), 0
    for path in files:
        with safe_open(path, "pt") as file:
            count += sum(file.get_tensor(name).clone().ndim >= 0 for name in file.keys())  # noqa: SIM118
    alone = time.process_time() - began
    monkeypatch.setattr(CopiedTensors, "OPENS", Counted)
    began = time.process_time()
    weights = load_weights(made, CONFIG, torch.float32)
    ours = time.process_time() - began
    assert count > 63_800 and weights.formats == "fp8_block+plain"
    assert opened == files and len(files) == 42
    # Processor time, so that other processes do not change the result.
    assert ours < 1.3 * alone
