"""A tower's attention equals torch's over each picture, for heads of any size."""

import pytest
import torch
from torch.nn import functional

from tasuki.model.ops.attention.picture_attention import picture_attention, rotate_heads
from tasuki.model.ops.attention.rope import apply_rotary

from .tensors import close

pytestmark = pytest.mark.usefixtures("poisoned_empty")

HEADS_AND_DIMS = [(2, 72), (3, 64), (1, 16), (2, 24), (1, 8), (1, 100)]


def qkv_of(patches: int, heads: int, dim: int, device: torch.device) -> torch.Tensor:
    torch.manual_seed(patches * dim)
    return torch.randn(patches, 3, heads, dim, device=device).bfloat16()


@pytest.mark.parametrize(("heads", "dim"), HEADS_AND_DIMS)
@pytest.mark.parametrize("patches", [1, 64, 129, 200])
def test_attention(patches: int, heads: int, dim: int, device: torch.device) -> None:
    qkv = qkv_of(patches, heads, dim, device)
    query, key, value = (part.transpose(0, 1)[None].float() for part in qkv.unbind(1))
    expected = functional.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1)
    close(picture_attention(qkv), expected.cpu(), 2e-2)


def test_large_scores_stay_finite(device: torch.device) -> None:
    qkv = 30 * qkv_of(70, 1, 72, device)
    found = picture_attention(qkv)
    query, key, value = (part.transpose(0, 1)[None].float() for part in qkv.unbind(1))
    expected = functional.scaled_dot_product_attention(query, key, value)[0].transpose(0, 1)
    close(found, expected.cpu(), 2e-2)


@pytest.mark.parametrize(("heads", "dim"), HEADS_AND_DIMS)
@pytest.mark.parametrize("patches", [1, 13])
def test_rotation(patches: int, heads: int, dim: int, device: torch.device) -> None:
    """Queries and keys turn, values stay."""
    qkv = qkv_of(patches, heads, dim, device)
    angles = torch.randn(patches, 1, dim // 2, device=device)
    cos, sin = angles.cos(), angles.sin()
    turned = apply_rotary(qkv[:, :2].flatten(1, 2), cos, sin).view(patches, 2, heads, dim)
    values = qkv[:, 2].clone()
    rotate_heads(qkv, cos, sin)
    close(qkv[:, :2], turned.cpu(), 1e-2)
    assert torch.equal(qkv[:, 2], values)
