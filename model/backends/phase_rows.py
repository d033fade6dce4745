"""Which rows of a forward are of which phase, and what is computed for each phase apart."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.batch import Batch
from tasuki.model.phase import Phase


@dataclass(frozen=True)
class PhasePart:
    """index [n] int64 on the device: its rows; None where they are all. rows [1] int32: n."""

    phase: Phase
    index: Tensor | None
    rows: Tensor


@dataclass(frozen=True)
class PhaseRows:
    """A part for each phase that occurs."""

    parts: tuple[PhasePart, ...]

    @staticmethod
    def of(batch: Batch, rows: Tensor) -> "PhaseRows":
        """batch is on the host; rows [1] int32 on the device: all of its rows."""
        stepped = [i in batch.stepped for i in range(len(batch.write_slots))]
        if len(set(stepped)) == 1:
            phase = Phase.STEP if stepped[0] else Phase.PROMPT
            return PhaseRows((PhasePart(phase, None, rows),))
        of_row = torch.repeat_interleave(torch.tensor(stepped), batch.cu_seqlens.diff())
        parts = []
        for phase, wanted in ((Phase.PROMPT, ~of_row), (Phase.STEP, of_row)):
            index = wanted.nonzero()[:, 0]
            count = torch.tensor([len(index)], dtype=torch.int32)
            parts.append(PhasePart(phase, _moved(index, rows), _moved(count, rows)))
        return PhaseRows(tuple(parts))

    def each(self, x: Tensor, compute: Callable[[Tensor, PhasePart], Tensor]) -> Tensor:
        """What compute() makes of the rows of x [T, ...] of each phase, in the order of x."""
        first = self.parts[0]
        if first.index is None:
            return compute(x, first)
        found = [compute(x[part.index], part) for part in self.parts]
        output = found[0].new_empty(len(x), *found[0].shape[1:])
        for part, rows in zip(self.parts, found, strict=True):
            output[part.index] = rows
        return output


def _moved(host: Tensor, like: Tensor) -> Tensor:
    if like.device.type == "cpu":
        return host
    return host.pin_memory().to(like.device, non_blocking=True)
