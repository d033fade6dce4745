"""The folder given by `--model` to a bench's daemons: a model's shape and a vocabulary of words.

It holds no weights: the daemons use random weights, or none. One file stands in for the weights, so
two nodes have the same weights digest to compare.
"""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from .words import write_tokenizer


def write_model_folder(folder: Path, shape: dict[str, Any]) -> None:
    """Write the model folder. shape: the content of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(shape))
    write_tokenizer(folder, shape["vocab_size"])
    save_file({"drawn_at_start": torch.zeros(1)}, str(folder / "model.safetensors"))
