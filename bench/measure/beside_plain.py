"""A row of quantised weights beside that of plain ones, which the same run measured before."""

import gc
from dataclasses import replace

import torch

from .report import Row


def beside_plain(row: Row, quantization: str, plain: float | None) -> Row:
    """The row, named after the format and without the targets of plain weights, beside `plain`
    seconds. Without a format as it is."""
    if not quantization:
        return row
    others = {} if plain is None else {"plain weights": plain}
    return replace(row, name=f"{quantization}: {row.name}", target="", met=None, others=others)


def free_memory(device: torch.device) -> None:
    """What an engine held that nobody names any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
