"""The last token ids of each sequence in a runner, for models that need those before a row.

Ids are known to the host here: on a GPU sampled ids stay on the device, and such a model needs
another record. Thread rule: the runner's. Invariant: the record of a batch index has the ids right
before any row that may come next: after drafts, also of a row that accepts none of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from tasuki.engine.forward_plan import ForwardPlan
from tasuki.model.forward import SequenceSlice

from .rows import ResolvedRows


@dataclass(frozen=True)
class _Recent:
    """Ids of one sequence. ids: neighbouring ones; first: position of the first."""

    ids: tuple[int, ...]
    first: int


class RecentIds:
    """The record of all sequences of a runner. wanted: number of ids before a row; with 0 nothing
    is recorded."""

    def __init__(self, wanted: int) -> None:
        self._wanted = wanted
        self._recent: dict[int, _Recent] = {}

    def drop(self, batch_indices: Iterable[int]) -> None:
        """Forget sequences that have left."""
        for batch_index in batch_indices:
            self._recent.pop(batch_index, None)

    def with_ids(
        self, plan: ForwardPlan, rows: ResolvedRows, slices: Sequence[SequenceSlice]
    ) -> list[SequenceSlice]:
        """Return the slices of the plan's rows with the ids before them."""
        if not self._wanted:
            return list(slices)
        joined = {item.batch_index: item.ids_before for item in plan.joined}
        found = []
        for batch_index, item in zip(rows.batch_indices.tolist(), slices, strict=True):
            if batch_index in joined:
                ids = joined[batch_index]
                self._recent[batch_index] = _Recent(ids, item.start - len(ids))
            recent = self._recent[batch_index]
            end = item.start - recent.first
            before = recent.ids[max(end - self._wanted, 0) : end]
            found.append(replace(item, ids_before=before))
        return found

    def record(self, rows: ResolvedRows, slices: Sequence[SequenceSlice]) -> None:
        """Record the ids of rows about to run, with the ids before them. Call it when drafts have
        replaced their placeholders."""
        if not self._wanted:
            return
        for batch_index, item in zip(rows.batch_indices.tolist(), slices, strict=True):
            ids = (*item.ids_before, *item.token_ids)
            # A row with drafts may be followed by one at any of its tokens.
            kept = len(ids) if item.stepped else min(len(ids), self._wanted)
            end = item.start + len(item.token_ids)
            self._recent[batch_index] = _Recent(ids[len(ids) - kept :], end - kept)
