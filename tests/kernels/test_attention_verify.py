"""Attention of rows with drafts equals runs of the CPU path on a context, and a row's padding
leaves nothing in its pages."""

import pytest
import torch
from torch import Tensor

from tasuki.model.ops.attention.decode import DecodeWorkspace
from tasuki.model.ops.attention.qk_norm_rope_gate import TokenPlaces
from tasuki.model.ops.attention.verify import paged_attention_verify
from tests.harness.covering import every_value

from .attention import KV, AttentionCase, Heads, Shape, attention_case, close_pages, roomy
from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")


def padded_places(case: AttentionCase, live: int, tokens: int) -> TokenPlaces:
    """Return places with `tokens` per row; padding among the first `live` rows has no position."""
    pairs = list(zip(case.lengths, case.contexts, strict=True))
    positions = [
        before + i if i < length else -1 for length, before in pairs for i in range(tokens)
    ]
    owners = [row for row in range(len(pairs)) for _ in range(tokens)]
    return TokenPlaces(
        case.int32(positions),
        case.int32(owners),
        case.page_table(),
        case.int32([live * tokens]),
        gaps=True,
    )


def padded(projected: Tensor, lengths: tuple[int, ...], tokens: int) -> Tensor:
    """Return rows of `tokens` tokens each; the padding holds meaningless numbers."""
    wide = torch.randn(len(lengths) * tokens, projected.shape[1] + 16, device=projected.device)
    wide = wide.to(projected.dtype)[:, :-16]
    start = 0
    for row, length in enumerate(lengths):
        wide[row * tokens : row * tokens + length] = projected[start : start + length]
        start += length
    return wide


SHAPES = {
    "fp32": Shape(Heads(2, 1, 64), torch.float32, 2e-6, parts=5),
    "group-3": Shape(Heads(6, 2, 128), torch.bfloat16, 1.5e-2, parts=1),
    "group-8": Shape(Heads(8, 1, 64, rotary=0.375), torch.bfloat16, 1.5e-2, parts=3),
}


@every_value(shape=SHAPES, fp8=KV)
def test_rows_equal_the_cpu_path(shape: Shape, fp8: bool, device: torch.device) -> None:
    # Around a page's end; the last sequence is padding, and its pages hold NaN.
    lengths, contexts, live, tokens = (3, 2, 1, 3), (0, 62, 130, 5), 3, 3
    case = attention_case(shape.heads, lengths, contexts, shape.dtype, device, fp8=fp8)
    projected = case.projected()
    expected, kv = case.oracle(projected, live)
    wide = padded(projected, lengths, tokens)
    places = padded_places(case, live, tokens)
    stored = DecodeWorkspace.sized(case.config, 4, device, shape.parts)
    workspace = DecodeWorkspace(
        shape.parts,
        stored.outputs.repeat(1, tokens, 1).fill_(torch.nan),
        stored.weights.repeat(1, tokens).fill_(torch.nan),
    )
    output = paged_attention_verify(
        case.queries(wide, places, 256),
        wide,
        case.config,
        case.kv,
        places.page_table,
        case.int32([length + before for length, before in zip(lengths, contexts, strict=True)]),
        case.int32(lengths),
        case.int32([live]),
        workspace,
    )
    start = 0
    for row, length in enumerate(lengths[:live]):
        own = output[row * tokens : row * tokens + tokens]
        close(own[:length], expected[start : start + length], roomy(shape.tolerance, fp8=fp8))
        assert own.isfinite().all()
        start += length
    close_pages(case.kv, kv, shape.tolerance)
    assert output[live * tokens :].isnan().all()
