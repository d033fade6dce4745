"""Every row of a decode step equals the CPU path's, in place or from slot to slot."""

import pytest
import torch
from tasuki.model.batch import SequenceSlice
from tasuki.model.ops.gdn import decode_inputs as gdn_step_inputs
from tasuki.model.ops.gdn.decode import gdn_decode

from .gdn import Heads, gdn_case, oracle
from .tensors import close, count

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def int32(values: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


@pytest.mark.parametrize(
    ("heads", "activations", "state", "tolerance"),
    [
        (Heads(1, 2, 64, 64), torch.float32, torch.float32, 2e-6),
        (Heads(2, 6, 32, 32), torch.float32, torch.float32, 2e-6),
        (Heads(1, 1, 128, 128), torch.bfloat16, torch.float32, 1e-2),
        (Heads(1, 2, 32, 64, width=3), torch.bfloat16, torch.bfloat16, 1e-2),
    ],
    ids=["fp32", "ratio-3", "bf16", "bf16-state"],
)
@pytest.mark.parametrize(
    ("write_slots", "few_rows"),
    [([5, 1, 2], 32), ([0, 4, 3], 0)],
    ids=["slot to slot, few", "in place, many"],
)
def test_step_equals_the_cpu_path(
    heads: Heads,
    activations: torch.dtype,
    state: torch.dtype,
    tolerance: float,
    write_slots: list[int],
    few_rows: int,
    device: torch.device,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gdn_step_inputs, "_FEW_ROWS", few_rows)
    case = gdn_case(heads, slots=7, activations=activations, state=state, device=device)
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
        )
        expected.check(output[:3], case, tolerance)
        read_slots, write_slots = write_slots, read_slots


def test_rates_near_zero_keep_their_precision(device: torch.device) -> None:
    """A small softplus is the argument itself, not what is left of it beside 1."""
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
        gdn_decode(projected, case.weights, case.config, case.conv, case.ssm, slot, slot, one)
    rate = torch.nn.functional.softplus(torch.tensor(-10.0, dtype=torch.float64)).item()
    close(case.ssm[0], (before * torch.exp(torch.tensor(-16 * 16 * rate))).float().cpu(), 5e-6)
