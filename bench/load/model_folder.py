"""The folder given by `--model` of a bench's daemons: a shape and a vocabulary of words.

It has no weights: they are random, or there are none. One file replaces them, so two nodes have
something to compare.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .words import write_tokenizer


def write_model_folder(folder: Path, shape: dict[str, Any]) -> None:
    """Write the folder. shape: the content of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    write_tokenizer(folder, shape["vocab_size"])
    save_file({"drawn_at_start": torch.zeros(1)}, str(folder / "model.safetensors"))
