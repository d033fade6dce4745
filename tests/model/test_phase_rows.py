"""Rows of answers and of prompts in one forward are computed apart and keep their places."""

import torch
from torch import Tensor

from tasuki.model.backends.triton_prefill import PhasePart, PhaseRows
from tasuki.model.forward import (
    BF16_STEPS,
    FP8_STEPS,
    Batch,
    Phase,
    PhaseActivations,
    SequenceSlice,
)


def rows_of(*sequences: tuple[int, bool], activations: PhaseActivations = BF16_STEPS) -> PhaseRows:
    """Return the rows of sequences, each (tokens, whether they belong to an answer)."""
    slices = [SequenceSlice([1] * n, 0, [0], 0, 1, stepped=answer) for n, answer in sequences]
    count = torch.tensor([sum(n for n, _ in sequences)], dtype=torch.int32)
    return PhaseRows.of(Batch.pack(slices), count, activations)


def marked(x: Tensor, part: PhasePart) -> Tensor:
    assert int(part.rows) == len(x)
    return x * (-1 if part.phase is Phase.STEP else 10)


def test_a_forward_of_one_phase_is_computed_at_once() -> None:
    x = torch.arange(5.0)[:, None]
    for answer, sign in ((True, -1), (False, 10)):
        rows = rows_of((2, answer), (3, answer))
        assert len(rows.parts) == 1 and rows.parts[0].index is None
        assert torch.equal(rows.each(x, marked), sign * x)


def test_rows_of_both_phases_keep_their_places() -> None:
    x = torch.arange(1.0, 8.0)[:, None]
    got = rows_of((2, False), (3, True), (1, False), (1, True)).each(x, marked)
    assert got[:, 0].tolist() == [10, 20, -3, -4, -5, 60, -7]


def test_rows_of_one_arithmetic_are_computed_at_once() -> None:
    rows = rows_of((2, False), (3, True), activations=FP8_STEPS)
    assert [(part.index, int(part.rows)) for part in rows.parts] == [(None, 5)]
