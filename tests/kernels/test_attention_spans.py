"""Attention by spans: rows in groups, the same rows each for itself, and each row in a batch of its
own give equal bits, near the CPU path."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tasuki.model.ops.attention.spans.attention import SpanWorkspace, attend_spans
from tasuki.model.ops.attention.spans.groups import GroupPlan
from tasuki.model.ops.attention.spans.rule import SpanRule
from tests.harness.covering import slow_behind

from .attention import AttentionCase, Heads, Shape, attention_case, roomy
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


RULE = SpanRule(least_pages=1, most_spans=3)
CONTEXTS = (200, 213, 130, 140, 5)
"""Rows 0 and 1 have four pages, so spans of two; the others have spans of one."""
SHARING = ((1, 0, 3), (2, 0, 2), (3, 0, 2))
"""(Row, other row, pages): the row's first pages are the other's."""
SUBSET = (3, 1, 0)


@dataclass(frozen=True)
class Step:
    """Rows of `tokens` tokens, with queries and keys written: all inputs of attention."""

    case: AttentionCase
    q: Tensor
    projected: Tensor
    tokens: int

    @staticmethod
    def of(shape: Shape, tokens: int, device: torch.device, *, fp8: bool) -> "Step":
        lengths = [1 + row % tokens for row in range(len(CONTEXTS))]
        case = attention_case(shape.heads, lengths, CONTEXTS, shape.dtype, device, fp8=fp8)
        pages = list(case.pages)
        for row, other, count in SHARING:
            pages[row] = (*pages[other][:count], *pages[row][count:])
        case = replace(case, pages=tuple(pages))
        projected = padded(case.projected(), case.lengths, tokens)
        q = case.queries(projected, padded_places(case, len(lengths), tokens), 512)
        return Step(case, q, projected, tokens)

    @property
    def lengths(self) -> list[int]:
        return [own + CONTEXTS[row] for row, own in enumerate(self.case.lengths)]

    def plan(self, rows: Sequence[int]) -> GroupPlan:
        made = SpanWorkspace.of(self.case.config, len(rows), self.tokens, self.case.device, RULE)
        return GroupPlan.of(
            [np.array(self.case.pages[row], dtype=np.int32) for row in rows],
            np.array([self.lengths[row] for row in rows], dtype=np.int32),
            np.array([CONTEXTS[row] + 1 for row in rows], dtype=np.int32),
            RULE,
            made.groups.most_rows,
        )

    def run(self, rows: Sequence[int], plan: GroupPlan, programs: int, spare: int = 0) -> Tensor:
        """Attend these rows as one batch. spare: rows of padding. Return [rows, tokens, ...]."""
        case, tokens = self.case, self.tokens
        chosen = [*rows, *[0] * spare]
        at = torch.tensor([row * tokens + i for row in chosen for i in range(tokens)])
        made = replace(
            SpanWorkspace.of(case.config, len(chosen), tokens, case.device, RULE),
            programs=programs,
        )
        made.groups.put(plan)
        output = attend_spans(
            self.q[at].contiguous(),
            self.projected[at],
            case.config,
            case.kv,
            case.page_table()[chosen],
            case.int32([self.lengths[row] for row in chosen]),
            case.int32([case.lengths[row] for row in chosen]) if tokens > 1 else None,
            case.int32([len(rows)]),
            made,
        )
        assert output[len(rows) * tokens :].isnan().all()
        return output[: len(rows) * tokens].view(len(rows), tokens, -1)


SHAPES = {
    "drafts-fp8": (Shape(Heads(2, 1, 64), torch.bfloat16, 1.5e-2), True, 2),
    "step": (Shape(Heads(6, 2, 64), torch.bfloat16, 1.5e-2), False, 1),
    "step-fp8": (Shape(Heads(8, 1, 64, rotary=0.375), torch.bfloat16, 1.5e-2), True, 1),
    "drafts": (Shape(Heads(6, 2, 64), torch.bfloat16, 1.5e-2), False, 2),
    "step-fp32": (Shape(Heads(2, 1, 64), torch.float32, 2e-6), False, 1),
    "drafts-fp32-fp8": (Shape(Heads(2, 1, 64), torch.float32, 2e-6), True, 3),
}


@pytest.mark.parametrize(("shape", "fp8", "tokens"), slow_behind(2, SHAPES))
def test_rows_in_groups_equal_each_row_alone(
    shape: Shape, fp8: bool, tokens: int, device: torch.device
) -> None:
    step = Step.of(shape, tokens, device, fp8=fp8)
    every = range(len(CONTEXTS))
    plan = step.plan(every)
    assert len(plan.units) == 3
    grouped = step.run(every, plan, programs=2)
    assert torch.equal(grouped, step.run(every, GroupPlan.alone(len(every)), programs=5, spare=4))
    assert torch.equal(grouped[1:2], step.run([1], GroupPlan.alone(1), programs=1))
    assert torch.equal(grouped[list(SUBSET)], step.run(SUBSET, step.plan(SUBSET), programs=3))
    valid = [row * tokens + i for row in every for i in range(step.case.lengths[row])]
    expected, _ = step.case.oracle(step.projected[torch.tensor(valid)], len(every))
    close(grouped.flatten(0, 1)[valid], expected, roomy(shape.tolerance, fp8=fp8))
