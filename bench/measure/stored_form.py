"""How an engine's weights and pages are stored, and its rows beside those of plain ones, which the
same run measured before."""

import gc
from dataclasses import dataclass, replace

import torch

from .report import Row


@dataclass(frozen=True)
class StoredForm:
    """quantization: of weights; kv_dtype: of keys and values, as of `tasuki serve`. "" is plain:
    of the engine's dtype."""

    quantization: str = ""
    kv_dtype: str = ""

    @property
    def name(self) -> str:
        pages = f"{self.kv_dtype} KV" if self.kv_dtype else ""
        return ", ".join(filter(None, (self.quantization, pages)))

    @property
    def is_plain(self) -> bool:
        return self == StoredForm()

    def row(self, row: Row, plain: float | None) -> Row:
        """The row, named after the form and without the targets of plain ones, beside `plain`
        seconds. Of a plain form as it is."""
        if self.is_plain:
            return row
        others = {} if plain is None else {"plain": plain}
        name = f"{self.name}: {row.name}"
        return replace(row, name=name, target="", met=None, others={**row.others, **others})


def free_memory(device: torch.device) -> None:
    """What an engine held that nobody names any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
