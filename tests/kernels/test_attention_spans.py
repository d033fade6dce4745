"""Attention by spans: rows in groups, the same rows each for itself, and each row in a batch of its
own give equal bits, near the CPU path."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.model.ops.attention.spans.attention import SpanShape, SpanWorkspace, attend_spans
from tasuki.model.ops.attention.spans.groups import GroupPlan
from tasuki.model.ops.attention.spans.rule import SpanRule
from tests.harness.covering import every_pair, every_value

from .attention import KV, AttentionCase, Heads, Shape, attention_case, roomy
from .tensors import close
from .test_attention_verify import padded, padded_places

pytestmark = pytest.mark.usefixtures("poisoned_empty", "products_in_order")


@pytest.fixture
def products_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the interpreter's products equal in each row of a matrix, as a GPU's are. A library's
    float32 product rounds a row by its place in the matrix; this one sums in float64."""
    if torch.cuda.is_available():
        return
    from triton.runtime import interpreter

    def operand(handle: Any) -> Any:
        if handle.dtype.scalar.is_bf16():
            return (handle.data.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return handle.data.astype(np.float64)

    def create_dot(self: Any, a: Any, b: Any, d: Any, *_: Any) -> Any:
        total = operand(a) @ operand(b) + d.data
        return interpreter.TensorHandle(total.astype(np.float32), d.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


RULE = SpanRule(least_pages=1, most_spans=4)
SHAPES = {
    "fp32": Shape(Heads(2, 1, 64), torch.float32, 2e-6),
    "group-3": Shape(Heads(6, 2, 128), torch.bfloat16, 1.5e-2),
    "group-8": Shape(Heads(8, 1, 64, rotary=0.375), torch.bfloat16, 1.5e-2),
}


@dataclass(frozen=True)
class Step:
    """Rows of `tokens` tokens after queries and keys are written: all inputs of attention."""

    case: AttentionCase
    q: Tensor
    projected: Tensor
    tokens: int
    shape: SpanShape

    @staticmethod
    def of(case: AttentionCase, tokens: int) -> "Step":
        projected = padded(case.projected(), case.lengths, tokens)
        q = case.queries(projected, padded_places(case, len(case.lengths), tokens), 1024)
        return Step(case, q, projected, tokens, SpanShape.of(case.config, tokens, q.dtype))

    def lens(self) -> list[int]:
        case = self.case
        return [len_ + before for len_, before in zip(case.lengths, case.contexts, strict=True)]

    def plan(self, rows: Sequence[int]) -> GroupPlan:
        lengths = np.array(self.lens(), dtype=np.int32)[list(rows)]
        seen = np.array(self.case.contexts, dtype=np.int32)[list(rows)] + 1
        pages = [np.array(self.case.pages[row], dtype=np.int32) for row in rows]
        most = self.shape.rows(self.case.config, self.tokens)
        return GroupPlan.of(pages, lengths, seen, RULE, most)

    def run(
        self, rows: Sequence[int], plan: GroupPlan | None, programs: int = 5, spare: int = 1
    ) -> Tensor:
        """Attend the rows as one batch, with `spare` rows of padding. Return their outputs [rows,
        tokens, ...]."""
        case, tokens, device = self.case, self.tokens, self.case.device
        chosen = [*rows, *[0] * spare]
        at = torch.tensor([row * tokens + i for row in chosen for i in range(tokens)])
        made = SpanWorkspace.of(case.config, len(chosen), tokens, self.q.dtype, device, RULE)
        if plan is not None:
            made.groups.put(plan)
        counts = case.int32([case.lengths[row] for row in chosen])
        output = attend_spans(
            self.q[at].contiguous(),
            self.projected[at.to(device)],
            case.config,
            case.kv,
            case.page_table()[chosen],
            case.int32([self.lens()[row] for row in chosen]),
            counts if tokens > 1 else None,
            case.int32([len(rows)]),
            made.with_programs(programs),
        )
        assert output[len(rows) * tokens :].isnan().all()
        return output[: len(rows) * tokens].view(len(rows), tokens, -1)


def shared_case(
    heads: Heads,
    lengths: Sequence[int],
    contexts: Sequence[int],
    sharing: Sequence[tuple[int, int, int]],
    dtype: torch.dtype,
    device: torch.device,
    *,
    fp8: bool,
) -> AttentionCase:
    """Return a case. sharing: (row, other row, pages): the row's first pages are the other's."""
    case = attention_case(heads, lengths, contexts, dtype, device, fp8=fp8)
    pages = list(case.pages)
    for row, other, count in sharing:
        pages[row] = (*pages[other][:count], *pages[row][count:])
    return replace(case, pages=tuple(pages))


ROWS = {
    # Two families: rows 0, 2, 4, 5 and, further on, 0, 5; rows 1, 3. Row 6 is alone.
    "two-families": (
        [200, 130, 215, 139, 150, 210, 70],
        [(2, 0, 2), (4, 0, 2), (5, 0, 3), (3, 1, 2)],
    ),
    "all": ([129] * 6, [(row, 0, 2) for row in range(1, 6)]),
    "none": ([64, 127, 5], []),
    # Five pages make spans of two pages, and row 1 has shorter spans.
    "of-two-sizes": ([300, 250, 310], [(1, 0, 3), (2, 0, 3)]),
}


@every_pair(shape=SHAPES, fp8=KV, of=ROWS, tokens={"step": 1, "drafts": 3})
def test_rows_in_groups_equal_each_row_alone(
    shape: Shape,
    fp8: bool,
    of: tuple[list[int], list[tuple[int, int, int]]],
    tokens: int,
    device: torch.device,
) -> None:
    contexts, sharing = of
    lengths = [1 + row % tokens for row in range(len(contexts))]
    case = shared_case(shape.heads, lengths, contexts, sharing, shape.dtype, device, fp8=fp8)
    step = Step.of(case, tokens)
    every = range(len(contexts))
    plan = step.plan(every)
    assert bool(len(plan.units)) == bool(sharing)
    grouped = step.run(every, plan)
    assert torch.equal(grouped, step.run(every, None, programs=2, spare=3))
    for row in every:
        assert torch.equal(grouped[row : row + 1], step.run([row], None, programs=1, spare=0))
    expected = naive(case, step)
    start = 0
    for row, length in enumerate(lengths):
        wanted = expected[start : start + length]
        close(grouped[row, :length], wanted, roomy(shape.tolerance, fp8=fp8))
        start += length


def naive(case: AttentionCase, step: Step) -> Tensor:
    """Return the CPU path's outputs of all valid tokens, from pages as written."""
    tokens = step.tokens
    valid = [r * tokens + i for r, length in enumerate(case.lengths) for i in range(length)]
    return case.oracle(step.projected[torch.tensor(valid)], len(case.lengths))[0]


@every_value(fp8=KV)
def test_groups_that_change_leave_a_rows_bits(fp8: bool, device: torch.device) -> None:
    contexts, sharing = ROWS["two-families"]
    lengths = [1] * len(contexts)
    case = shared_case(Heads(4, 2, 64), lengths, contexts, sharing, torch.bfloat16, device, fp8=fp8)
    step = Step.of(case, 1)
    every = step.run(range(len(contexts)), step.plan(range(len(contexts))))
    for rows in ([5, 0], [4, 3, 0, 1], [2, 6, 5, 0, 4]):
        assert torch.equal(step.run(rows, step.plan(rows), programs=3), every[rows])
