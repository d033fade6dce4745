"""The embedded model as a plain function of its input rows, differentiable in these.

The product's forward writes pages and slots, so no gradient passes through it. This one computes
whole sequences from their beginning, without a cache. Its weights are constants. A CUDA graph may
capture it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import DeltaNetConfig, DenseShape
from tasuki.model.families.registry import load_config
from tasuki.model.layer_kind import LayerKind
from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary
from tasuki.model.vision.prompt_positions import rotary_axes

WEIGHTS = "model.safetensors"
_PREFIX = "model."
_SMALL = ".in_proj_"
_LINEAR_EPS = 1e-6


@dataclass(frozen=True)
class FrozenTrunk:
    """The embedded model without its draft layer, on one device. tensors: by their names in the
    checkpoint, without `model.`. frequencies, axes [pairs]: of the rotary embedding, and the axis
    of each pair."""

    config: DeltaNetConfig
    tensors: Mapping[str, Tensor]
    frequencies: Tensor
    axes: Tensor

    @staticmethod
    def load(folder: Path, device: str, sections: tuple[int, int, int]) -> "FrozenTrunk":
        """Load the trunk. Its projections are bfloat16 on a GPU, float32 elsewhere; all else is
        float32. sections: rotary pairs of frames, rows and columns. Raises ModelConfigError,
        OSError."""
        config = load_config(folder)
        assert isinstance(config, DeltaNetConfig)
        if not isinstance(config.feed_forward, DenseShape):
            raise ValueError(f"{folder}: has experts; only a dense model is computed here")
        wide = torch.bfloat16 if device.startswith("cuda") else torch.float32
        tensors = {}
        for name, tensor in load_file(folder / WEIGHTS).items():
            if name.startswith(_PREFIX):
                kept = wide if name.endswith("_proj.weight") or _SMALL in name else torch.float32
                tensors[name.removeprefix(_PREFIX)] = tensor.to(device, kept)
        frequencies = RotaryAngles.of(config).frequencies.to(device)
        axes = rotary_axes(sections, len(frequencies)).to(device)
        return FrozenTrunk(config, tensors, frequencies, axes)

    @property
    def embedding(self) -> Tensor:
        """Return the embedding [vocab, hidden], also the output head."""
        return self.tensors["embed_tokens.weight"]

    def hidden(self, rows: Tensor, positions: Tensor) -> Tensor:
        """Return the hidden states after the final norm [B, T, hidden]. rows [B, T, hidden]: input
        of the first layer. positions [B, 3, T]: rotary positions."""
        turns = self._turns(positions)
        x = rows
        for layer, kind in enumerate(self.config.layer_kinds):
            name = f"layers.{layer}"
            normed = self._norm(x, f"{name}.input_layernorm")
            if kind is LayerKind.FULL:
                x = x + self._attention(normed, f"{name}.self_attn", turns)
            else:
                x = x + self._gdn(normed, f"{name}.linear_attn")
            x = x + self._mlp(self._norm(x, f"{name}.post_attention_layernorm"), f"{name}.mlp")
        return self._norm(x, "norm")

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [.., vocab] of hidden states [.., hidden]."""
        return functional.linear(hidden, self.embedding)

    def _turns(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return cos and sin [B, T, 1, pairs] of rotary positions [B, 3, T]."""
        angles = positions.float()[:, self.axes].mT * self.frequencies
        return angles.cos()[:, :, None], angles.sin()[:, :, None]

    def _product(self, x: Tensor, name: str) -> Tensor:
        weight = self.tensors[f"{name}.weight"]
        return functional.linear(x.to(weight.dtype), weight)

    def _norm(self, x: Tensor, name: str) -> Tensor:
        """Return the RMS norm with a weight centred at zero."""
        weight = 1 + self.tensors[f"{name}.weight"]
        return functional.rms_norm(x.float(), weight.shape, weight, self.config.norm_eps)

    def _mlp(self, x: Tensor, name: str) -> Tensor:
        gate = functional.silu(self._product(x, f"{name}.gate_proj"))
        return self._product(gate * self._product(x, f"{name}.up_proj"), f"{name}.down_proj")

    def _attention(self, x: Tensor, name: str, turns: tuple[Tensor, Tensor]) -> Tensor:
        config = self.config
        dim, ratio = config.head_dim, config.query_heads // config.kv_heads
        gated = self._product(x, f"{name}.q_proj").unflatten(-1, (config.query_heads, 2 * dim))
        q, gate = gated.chunk(2, -1)
        k = self._product(x, f"{name}.k_proj").unflatten(-1, (config.kv_heads, dim))
        v = self._product(x, f"{name}.v_proj").unflatten(-1, (config.kv_heads, dim))
        q = _turned(self._norm(q, f"{name}.q_norm"), turns).to(v.dtype)
        k = _turned(self._norm(k, f"{name}.k_norm"), turns).to(v.dtype)
        found = functional.scaled_dot_product_attention(
            q.transpose(1, 2),
            k.transpose(1, 2).repeat_interleave(ratio, 1),
            v.transpose(1, 2).repeat_interleave(ratio, 1),
            is_causal=True,
        )
        return self._product((found.transpose(1, 2) * gate.sigmoid()).flatten(2), f"{name}.o_proj")

    def _gdn(self, x: Tensor, name: str) -> Tensor:
        config, tensors = self.config, self.tensors
        keys, values = config.key_heads * config.key_dim, config.value_heads * config.value_dim
        mixed = self._product(x, f"{name}.in_proj_qkv").float()
        mixed = _convolved(mixed, tensors[f"{name}.conv1d.weight"].squeeze(1))
        q, k, v = mixed.split([keys, keys, values], -1)
        ratio = config.value_heads // config.key_heads
        q, k = (
            _unit(part.unflatten(-1, (config.key_heads, config.key_dim))).repeat_interleave(
                ratio, 2
            )
            for part in (q, k)
        )
        v = v.unflatten(-1, (config.value_heads, config.value_dim))
        wish = self._product(x, f"{name}.in_proj_a").float() + tensors[f"{name}.dt_bias"]
        decay = -tensors[f"{name}.A_log"].exp() * functional.softplus(wish)
        strength = self._product(x, f"{name}.in_proj_b").float().sigmoid()
        found = delta_rule(q * config.key_dim**-0.5, k, v, decay, strength)
        norm = tensors[f"{name}.norm.weight"]
        found = functional.rms_norm(found, norm.shape, norm, config.norm_eps)
        gate = self._product(x, f"{name}.in_proj_z").float()
        found = found.flatten(2) * functional.silu(gate)
        return self._product(found, f"{name}.out_proj")


def delta_rule(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, strength: Tensor) -> Tensor:
    """Return the gated delta rule's outputs [B, T, H, D], from a state of zeros. q, k, v [B, T, H,
    D]; decay (logarithm), strength [B, T, H]. All float32.

    The state is never computed. A write is the change of a key's value by one token. All writes
    together solve a triangular system. Time and memory grow with the square of T.
    """
    q, k, v = (part.transpose(1, 2) for part in (q, k, v))
    total = decay.mT.cumsum(-1)
    strength = strength.mT[..., None]
    within = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    system = (k @ k.mT * within * strength).tril(-1)
    written = UnitLowerInverse.apply(system) @ (v * strength)
    outputs: Tensor = (q @ k.mT * within) @ written
    return outputs.transpose(1, 2)


class UnitLowerInverse(torch.autograd.Function):
    """The inverse of I + L, for strictly lower triangular matrices L [.., T, T].

    Built from inverses of blocks of 1, 2, 4 .. rows: a few products of all blocks together, where a
    triangular solver goes row by row.
    """

    @staticmethod
    def forward(context: Any, lower: Tensor) -> Tensor:
        size = lower.shape[-1]
        whole = 1 << (size - 1).bit_length()
        padded = functional.pad(lower, (0, whole - size, 0, whole - size))
        found = torch.eye(whole, dtype=lower.dtype, device=lower.device).expand_as(padded).clone()
        rows = 1
        while rows < whole:
            blocks = _diagonal_blocks(found, 2 * rows)
            first, second = blocks[..., :rows, :rows], blocks[..., rows:, rows:]
            below = _diagonal_blocks(padded, 2 * rows)[..., rows:, :rows]
            blocks[..., rows:, :rows] = -(second @ below @ first)
            rows *= 2
        inverse = found[..., :size, :size].contiguous()
        context.save_for_backward(inverse)
        return inverse

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        (inverse,) = context.saved_tensors
        return -(inverse.mT @ gradients[0] @ inverse.mT).tril(-1)


def _diagonal_blocks(matrices: Tensor, rows: int) -> Tensor:
    """Return a view of the blocks of `rows` x `rows` on the diagonal, [.., blocks, rows, rows]."""
    count = matrices.shape[-1] // rows
    cut = matrices.view(*matrices.shape[:-2], count, rows, count, rows)
    return cut.diagonal(dim1=-4, dim2=-2).movedim(-1, -3)


def _turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    cos, sin = (part.flatten(0, 1) for part in turns)
    return apply_rotary(x.flatten(0, 1), cos, sin).unflatten(0, x.shape[:2])


def _convolved(x: Tensor, taps: Tensor) -> Tensor:
    """Return SiLU of the causal convolution of x [B, T, C] by channel. taps [C, width]."""
    width = taps.shape[1]
    padded = functional.pad(x, (0, 0, width - 1, 0))
    total = torch.zeros_like(x)
    for tap in range(width):
        total = total + padded[:, tap : tap + x.shape[1]] * taps[:, tap]
    return functional.silu(total)


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + _LINEAR_EPS)
