"""A decode step's attention equals the CPU path's, however the pages are shared out."""

import pytest
import torch
from tasuki.model.ops.attention.decode import DecodeWorkspace, paged_attention_decode

from .attention import Heads, attention_case
from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")


@pytest.mark.parametrize(
    ("heads", "dtype", "tolerance"),
    [
        (Heads(2, 1, 64), torch.float32, 2e-6),
        (Heads(6, 2, 128), torch.bfloat16, 1e-2),
        (Heads(4, 2, 256), torch.bfloat16, 1e-2),
        (Heads(17, 1, 64, rotary=0.375), torch.bfloat16, 1e-2),
    ],
    ids=["fp32", "group-3", "head-256", "group-17"],
)
@pytest.mark.parametrize("shares", [1, 3, 8])
def test_step_equals_the_cpu_path(
    heads: Heads, dtype: torch.dtype, tolerance: float, shares: int, device: torch.device
) -> None:
    # Lengths around a page's end; the last sequence is padding, and its pages hold NaN.
    case = attention_case(heads, [1] * 5, [0, 63, 64, 200, 5], dtype, device)
    live = 4
    projected = case.projected()
    expected, kv = case.oracle(projected, live)
    config = case.config
    workspace = DecodeWorkspace.sized(config, 5, device, shares)
    for partial in (workspace.outputs, workspace.weights):
        partial.fill_(torch.nan)
    places = case.places(live)
    output = paged_attention_decode(
        case.queries(projected, places, 256),
        projected,
        config,
        case.kv,
        places.page_table,
        places.positions + 1,
        places.rows,
        workspace,
    )
    close(output[:live], expected, tolerance)
    close(case.kv, kv, tolerance)
    assert output[live:].isnan().all()


def test_workspace_holds_as_many_parts_as_programs_and_sequences_meet(
    device: torch.device,
) -> None:
    config = Heads(8, 2, 64).config()
    workspace = DecodeWorkspace.of(config, 4, device)
    assert workspace.shares >= 1
    assert workspace.outputs.shape == (workspace.shares + 4, 8, 64)


def test_pages_that_are_not_dense_are_refused(device: torch.device) -> None:
    case = attention_case(Heads(2, 2, 64), [1], [3], torch.float32, device)
    places = case.places(1)
    with pytest.raises(ValueError, match="pages must be dense"):
        paged_attention_decode(
            torch.zeros(1, 2, 64, device=device),
            case.projected(),
            case.config,
            case.kv[:, :, :, :1],
            places.page_table,
            places.positions + 1,
            places.rows,
            DecodeWorkspace.sized(case.config, 1, device, 1),
        )
