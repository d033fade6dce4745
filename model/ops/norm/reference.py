"""Root-mean-square norms, computed in float32 and returned in the input's dtype."""

import torch
from torch import Tensor
from torch.nn import functional


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the norm of x [..., n]; weight [n] float32, already 1 + w if the published norm is
    zero-centred."""
    return functional.rms_norm(x.float(), weight.shape, weight, eps).to(x.dtype)


def gated_rms_norm(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return rms_norm(x) * silu(gate) in gate's dtype; x, gate [..., n]; weight [n] float32,
    plain."""
    normed = functional.rms_norm(x.float(), weight.shape, weight, eps)
    return normed.mul_(functional.silu(gate.float())).to(gate.dtype)


def l2_norm(x: Tensor) -> Tensor:
    """Bring x [..., n] float32 to unit length; eps is inside the root, as in the model's
    training."""
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + 1e-6)
