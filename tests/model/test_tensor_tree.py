"""The digest of weights by tensors: it changes with any tensor, and with nothing else."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.engine.tiers.disk.kept_folder import digests_of_weights
from tasuki.model.weights.safetensors_folder import INDEX, weights_digest
from tasuki.model.weights.tensor_tree import tensors_digest

Tensors = dict[str, Tensor]
TENSORS: Tensors = {
    "model.a": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "model.b": torch.zeros(2, dtype=torch.bfloat16),
    "mtp.c": torch.empty(0, 4),
}


def folder(path: Path, tensors: Tensors, files: int = 1) -> Path:
    path.mkdir()
    parts = [dict(list(tensors.items())[at::files]) for at in range(files)]
    names = {}
    for number, part in enumerate(parts):
        save_file(part, path / f"model-{number}.safetensors", {"written": str(files)})
        names |= dict.fromkeys(part, f"model-{number}.safetensors")
    (path / INDEX).write_text(json.dumps({"weight_map": names}))
    return path


def changed(name: str, change: Callable[[Tensor], Tensor]) -> Tensors:
    return {**TENSORS, name: change(TENSORS[name])}


def test_other_files_of_the_same_tensors_are_the_same_weights(tmp_path: Path) -> None:
    one, two = (folder(tmp_path / str(files), TENSORS, files) for files in (1, 2))
    assert weights_digest(one) != weights_digest(two)
    assert tensors_digest(one) == tensors_digest(two)


@pytest.mark.parametrize(
    "tensors",
    [
        changed("model.a", lambda a: a + torch.eye(3, 4) * 1e-6),
        changed("model.a", lambda a: a.reshape(4, 3)),
        changed("model.a", lambda a: a.view(torch.int32)),
        changed("model.b", lambda b: -b),
        changed("mtp.c", lambda c: c.reshape(2, 0)),
        {**TENSORS, "model.d": torch.empty(0)},
        {name: tensor for name, tensor in TENSORS.items() if name != "mtp.c"},
        {**TENSORS, "model.a": TENSORS["model.b"], "model.b": TENSORS["model.a"]},
    ],
)
def test_every_part_of_a_tensor_counts(tmp_path: Path, tensors: Tensors) -> None:
    before = tensors_digest(folder(tmp_path / "before", TENSORS))
    assert tensors_digest(folder(tmp_path / "after", tensors)) != before


def test_a_known_tree_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, kept = folder(tmp_path / "model", TENSORS), tmp_path / "kept"
    kept.mkdir()
    found = digests_of_weights(str(model), str(kept))
    assert found == digests_of_weights(str(model), None)
    monkeypatch.setattr("tasuki.engine.tiers.disk.kept_folder.tensors_digest", None)
    assert digests_of_weights(str(model), str(kept)) == found
