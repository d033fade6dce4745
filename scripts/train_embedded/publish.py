"""Writes a trained model as the checkpoint folder that is shipped, and the sums over it.

Owns file names and dtypes: what published Qwen3.5 checkpoints keep in float32 stays so. Run as
`python -m scripts.train_embedded.publish FOLDER` to write SHA256SUMS anew, and with the folder that
a draft layer was trained into behind it to put that layer into the weights before.
"""

import hashlib
import shutil
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

SUMS = "SHA256SUMS"
DRAFT_HEAD = "mtp.safetensors"
DRAFT_RECORD = "draft_head.json"
_WEIGHTS = "model.safetensors"
_FLOAT32 = (".A_log", ".linear_attn.norm.weight")


def published(model: nn.Module) -> dict[str, Tensor]:
    """The model's tensors as they are shipped, on the CPU; the tied output head is left out."""
    return {
        name: (
            tensor.detach()
            .to("cpu", torch.float32 if name.endswith(_FLOAT32) else torch.bfloat16)
            .contiguous()
        )
        for name, tensor in model.state_dict().items()
        if name != "lm_head.weight"
    }


def save_weights(tensors: dict[str, Tensor], directory: Path) -> None:
    """Write model.safetensors."""
    save_file(tensors, directory / _WEIGHTS, metadata={"format": "pt"})


def add_draft_head(directory: Path, trained: Path) -> None:
    """Put a trained draft layer into the weights of the folder, in the place of one that is there,
    and its record beside them."""
    kept = {
        name: tensor
        for name, tensor in load_file(directory / _WEIGHTS).items()
        if not name.startswith("mtp.")
    }
    save_weights({**kept, **load_file(trained / DRAFT_HEAD)}, directory)
    shutil.copyfile(trained / DRAFT_RECORD, directory / DRAFT_RECORD)


def write_sums(directory: Path) -> None:
    """SHA-256 of every file of the folder but the sums themselves, in sha256sum's format."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / SUMS).write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    if len(sys.argv) > 2:
        add_draft_head(Path(sys.argv[1]), Path(sys.argv[2]))
    write_sums(Path(sys.argv[1]))
