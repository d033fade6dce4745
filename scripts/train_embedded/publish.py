"""Writes a trained model as the checkpoint folder that is shipped, and the sums over it.

Owns file names and dtypes: what published Qwen3.5 checkpoints keep in float32 stays so. Run as
`python -m scripts.train_embedded.publish FOLDER` to write SHA256SUMS anew.
"""

import hashlib
import sys
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn

SUMS = "SHA256SUMS"
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
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def write_sums(directory: Path) -> None:
    """SHA-256 of every file of the folder but the sums themselves, in sha256sum's format."""
    files = sorted(path for path in directory.iterdir() if path.is_file() and path.name != SUMS)
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files]
    (directory / SUMS).write_text("".join(lines), encoding="ascii")


if __name__ == "__main__":
    write_sums(Path(sys.argv[1]))
