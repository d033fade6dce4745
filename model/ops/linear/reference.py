"""SwiGLU feed-forward."""

from torch import Tensor
from torch.nn import functional


def swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """x [T, hidden]; gate_up [2 * intermediate, hidden], gate rows first; down [hidden,
    intermediate]."""
    gate, up = functional.linear(x, gate_up).chunk(2, dim=-1)
    return functional.linear(functional.silu(gate).mul_(up), down)
