"""Gated delta rule: packed prompts with any cuts, and the rows of a decode step, give the CPU
path's outputs and states."""

import pytest
import torch

from tasuki.model.forward import SequenceSlice
from tasuki.model.ops.gdn import decode_inputs as gdn_step_inputs
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.ops.gdn.prefill import gdn_prefill
from tasuki.model.ops.gdn.prefill_plan import plan_gdn_prefill
from tests.harness.covering import every_value

from .gdn import STEP_SHAPES, GdnCase, Heads, Shape, gdn_case, oracle
from .tensors import close, count, int32

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def check_forward(
    case: GdnCase, slices: list[SequenceSlice], projected: torch.Tensor, tolerance: float
) -> None:
    lengths = [len(item.token_ids) for item in slices]
    saves = [
        (sequence, position - item.start, slot)
        for sequence, item in enumerate(slices)
        for position, slot in (
            *item.checkpoints,
            (item.start + len(item.token_ids), item.write_slot),
        )
    ]
    read_slots = [item.read_slot for item in slices]
    before = [item.start for item in slices]
    dtype = case.ssm.dtype
    plan = plan_gdn_prefill(lengths, read_slots, saves, before, dtype, case.conv.device)
    expected = oracle(case, projected, slices)
    output = gdn_prefill(projected, case.weights, case.config, case.conv, case.ssm, plan)
    expected.check(output, case, tolerance)


FORWARD_SHAPES = {
    "fp32": Shape(Heads(1, 3, 32, 32), torch.float32, torch.float32, 1e-5),
    "bf16": Shape(Heads(1, 1, 128, 128), torch.bfloat16, torch.float32, 2e-2),
    "bf16-state": Shape(Heads(1, 2, 64, 64, width=3), torch.bfloat16, torch.bfloat16, 2e-2),
}


@pytest.mark.parametrize("shape", FORWARD_SHAPES.values(), ids=FORWARD_SHAPES)
def test_forward_equals_the_cpu_path(shape: Shape, device: torch.device) -> None:
    case = shape.case(slots=12, device=device)
    case.fill([0, 1, 2, 3])
    slices = [
        # In place, with checkpoints closer to the start than the convolution's width.
        SequenceSlice([1] * 2, 10, [0], 0, 0, [(11, 4), (12, 5)]),
        # One token; a slot to another; cut at odd places, and at the end twice.
        SequenceSlice([1], 3, [0], 1, 1),
        SequenceSlice([1] * 100, 64, [0] * 3, 2, 6, [(65, 7), (128, 8), (131, 9), (164, 10)]),
        SequenceSlice([1] * 65, 0, [0, 0], 3, 3),
    ]
    check_forward(case, slices, case.projected(2 + 1 + 100 + 65), shape.tolerance)


def test_keys_that_repeat_keep_the_solve_exact(device: torch.device) -> None:
    """Equal keys, beta near one and little decay are the worst case of the triangular solve."""
    case = gdn_case(Heads(1, 1, 32, 32), 2, torch.float32, torch.float32, device)
    case.fill([0])
    case.weights.decay_rate.fill_(-1e-3)
    wide = case.projected(64)
    wide[:, :96] = wide[:1, :96]
    wide[:, -2] = 8.0
    check_forward(case, [SequenceSlice([1] * 64, 0, [0], 0, 1)], wide, 1e-4)


def test_no_sequence_saves_past_its_end() -> None:
    with pytest.raises(ValueError, match="after 5 tokens of sequence 1, which has 4"):
        plan_gdn_prefill([8, 4], [0, 1], [(0, 8, 0), (1, 5, 1)], [0, 0], torch.float32, "cpu")


def test_tables_begin_aligned_and_hold_every_cut() -> None:
    saves = [(0, 70, 4), (0, 3, 6), (1, 1, 7)]
    plan = plan_gdn_prefill([70, 1], [4, 5], saves, [40, 0], torch.float32, "cpu")
    assert plan.chunks.tolist() == [[0, 3, 0, 4], [3, 64, 0, 4], [67, 3, 0, 4], [70, 1, 70, 5]]
    assert plan.segments.tolist() == [[0, 1, 0, 1], [1, 3, 1, 2], [3, 4, 2, 3]]
    assert plan.sequences.tolist() == [[0, 4, 0, 2, 0, 2], [70, 5, 2, 3, 2, 3]]
    assert plan.saves.tolist() == [[3, 6], [70, 4], [1, 7]]
    assert plan.ends.tolist() == [43, 107, 110, 1]
    tables = (plan.sequences, plan.segments, plan.chunks, plan.saves, plan.ends)
    assert [table.data_ptr() % 16 for table in tables] == [plan.sequences.data_ptr() % 16] * 5
    # Rounded states have chunks that end at multiples of 64 tokens of the sequence.
    plan = plan_gdn_prefill([70, 1], [4, 5], saves, [40, 0], torch.bfloat16, "cpu")
    assert plan.chunks[:, :2].tolist() == [[0, 3], [3, 21], [24, 46], [70, 1]]
    assert plan.ends.tolist() == [43, 64, 110, 1]


@every_value(
    shape=STEP_SHAPES,
    writes={"slot to slot, few": ([5, 1, 2], 32), "in place, many": ([0, 4, 3], 0)},
)
def test_step_equals_the_cpu_path(
    shape: Shape,
    writes: tuple[list[int], int],
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_slots, few_rows = writes
    monkeypatch.setattr(gdn_step_inputs, "_FEW_ROWS", few_rows)
    case = shape.case(slots=7, device=device)
    read_slots = [0, 4, 3]
    case.fill(read_slots)
    for _ in range(2):
        projected = case.projected(tokens=4)
        expected = oracle(
            case,
            projected[:3],
            [
                SequenceSlice([1], 5, [0], read, write)
                for read, write in zip(read_slots, write_slots, strict=True)
            ],
        )
        # The fourth row is padding, and its slots name memory that must not be touched.
        output = gdn_decode(
            projected,
            case.weights,
            case.config,
            case.conv,
            case.ssm,
            int32([*read_slots, 6], device),
            int32([*write_slots, 6], device),
            count(3, device),
            int32([5] * 4, device),
        )
        expected.check(output[:3], case, shape.tolerance)
        read_slots, write_slots = write_slots, read_slots


def test_rates_near_zero_keep_their_precision(device: torch.device) -> None:
    """A small softplus is computed directly, without losing digits beside 1."""
    case = gdn_case(Heads(1, 2, 64, 64), 1, torch.float32, torch.float32, device)
    case.fill([0])
    case.weights.decay_rate.fill_(-16.0)
    case.weights.dt_bias.fill_(-10.0)
    projected = torch.zeros_like(case.projected(tokens=1))
    before = case.ssm[0].double().clone()
    slot = int32([0], device)
    case.conv.zero_()
    for _ in range(16):
        one = count(1, device)
        tables = slot, slot, one, int32([0], device)
        gdn_decode(projected, case.weights, case.config, case.conv, case.ssm, *tables)
    rate = torch.nn.functional.softplus(torch.tensor(-10.0, dtype=torch.float64)).item()
    close(case.ssm[0], (before * torch.exp(torch.tensor(-16 * 16 * rate))).float().cpu(), 5e-6)
