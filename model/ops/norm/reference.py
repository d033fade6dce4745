"""Root-mean-square norms, computed in float32 and returned in the input's dtype."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of x [..., n], times weight [n] float32. If the published norm is
    zero-centred, weight is already 1 + w."""
    return functional.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm of x times silu(gate), in gate's dtype. x, gate [..., n]; weight [n]
    float32, without 1 added."""
    normed = functional.rms_norm(x.float(), weight.shape, weight, eps)
    return normed.mul_(functional.silu(gate.float())).to(gate.dtype)


def l2_norm(x: Tensor) -> Tensor:
    """Return x [..., n] float32 scaled to unit length. The small eps is inside the root, as in the
    model's training."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
