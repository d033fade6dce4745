"""The layer operators of Kimi Linear in PyTorch, for CPUs.

KimiBackend is chosen when the model is built, and bound to a batch for every forward. The resulting
KimiOperators hold the data shared by all layers of that forward. Arena memory outside the batch's
pages and slots may hold NaN.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.torch_backend import attention_of
from tasuki.model.forward import Batch, Reduce, one_rank
from tasuki.model.ops.attention.reference import AttentionPlan
from tasuki.model.ops.gdn.reference import CHANNEL_DECAY, GdnPlans, gated_delta_rule
from tasuki.model.ops.gdn.reference_conv import ConvPlan, causal_conv, plan_conv
from tasuki.model.ops.gdn.reference_rounding import StateNoise
from tasuki.model.ops.linear.reference import product, swiglu
from tasuki.model.ops.moe.reference import mixture
from tasuki.model.ops.norm.reference import l2_norm, rms_norm
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.weights.matrix import Matrix

from .config import ExpertShape, KimiConfig
from .latent_attention import latent_attention
from .weights import DenseWeights, ExpertWeights, KdaWeights, LatentWeights

_LATENT_EPS = 1e-6
"""Epsilon of the latent's norm. It is not the config's, which the published model ignores here."""
_WEIGHT_EPS = 1e-20


@dataclass(frozen=True)
class KimiPlan:
    """Data shared by all layers of one forward, so layers have no index arithmetic. room: memory
    for the rows gathered from pages."""

    attention: AttentionPlan
    conv: ConvPlan
    delta: GdnPlans
    room: RowRoom

    @staticmethod
    def of(batch: Batch, config: KimiConfig, room: RowRoom) -> "KimiPlan":
        lengths = batch.cu_seqlens.diff().tolist()
        saves = batch.saves()
        return KimiPlan(
            attention=attention_of(batch),
            conv=plan_conv(lengths, batch.read_slots, saves, config.conv_width - 1),
            delta=GdnPlans.of(batch),
            room=room,
        )


class KimiBackend:
    """The back end in PyTorch. config: with one rank's heads and widths, like the weights. It owns
    the memory for rows gathered from pages, shared by successive forwards. Thread rule: one
    thread."""

    def __init__(self, config: KimiConfig, reduce: Reduce = one_rank) -> None:
        self._config = config
        self._reduce = reduce
        self._room = RowRoom()

    def beside(self) -> "KimiBackend":
        """Return a back end for forwards on another thread, with memory of its own."""
        return KimiBackend(self._config, self._reduce)

    def bind(self, batch: Batch) -> "KimiOperators":
        plan = KimiPlan.of(batch, self._config, self._room)
        return KimiOperators(self._config, plan, self._reduce)


class KimiOperators:
    """Operators of one forward of T tokens. It holds the forward's plan and none of the arena."""

    def __init__(self, config: KimiConfig, plan: KimiPlan, reduce: Reduce) -> None:
        self._config = config
        self._plan = plan
        self._reduce = reduce

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        """Return the product [T, n] of the normed branch + residual with weight [n, hidden]
        transposed, and the sum branch + residual [T, hidden]. norm: [hidden] float32."""
        total = residual if branch is None else residual + branch
        return product(rms_norm(total, norm, self._config.norm_eps), weight), total

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return x [T, k] times weight [hidden, k] transposed, summed over ranks: [T, hidden]."""
        return self._reduce(product(x, weight))

    def kda(self, projected: Tensor, weights: KdaWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        """Run one KDA mixer. Return [T, heads * dim], the input of out_proj.

        projected: [T, q | k | v | decay rank | gate rank | beta]. conv: [slots, channels, columns],
        the layer's convolution states. ssm: [slots, heads, value dim, key dim], its recurrent
        states. Both are read and written at the batch's slots.
        """
        config = self._config
        tokens, heads, dim = len(projected), config.kda_heads, config.kda_dim
        mixed, decay, gate, beta = projected.split_with_sizes(
            [config.conv_channels, config.gate_rank, config.gate_rank, heads], dim=-1
        )
        mixed = causal_conv(mixed, weights.conv, conv, self._plan.conv).float()
        q, k, v = mixed.view(tokens, 3, heads, dim).unbind(1)
        steps = product(decay, weights.decay_proj).float().view(tokens, heads, dim)
        output = gated_delta_rule(
            l2_norm(q) * dim**-0.5,
            l2_norm(k),
            v,
            weights.decay_rate * functional.softplus(steps + weights.dt_bias),
            beta.float().sigmoid(),
            ssm,
            self._plan.delta.of_states(ssm.dtype),
            StateNoise(weights.number, config.first_kda_head),
            CHANNEL_DECAY,
        )
        opened = product(gate, weights.gate_proj).view(tokens, heads, dim).float().sigmoid()
        normed = rms_norm(output, weights.norm, self._config.norm_eps)
        return (normed * opened).to(projected.dtype).flatten(1)

    def latent(self, projected: Tensor, weights: LatentWeights, pages: Tensor) -> Tensor:
        """Run one latent attention mixer. Return [T, heads * value_dim], the input of out_proj.

        projected: [T, query_heads x (key_dim, shared_dim) | latent | shared key]. pages: [page ids,
        page_tokens, rank + shared_dim], the layer's pages. All rows of this forward are written
        before any is read.
        """
        shape = self._config.latent
        tokens = len(projected)
        q, latent, shared = projected.split_with_sizes(
            [shape.heads * shape.query_dim, shape.rank, shape.shared_dim], dim=-1
        )
        rows = torch.cat([rms_norm(latent, weights.norm, _LATENT_EPS), shared], dim=-1)
        output = latent_attention(
            q.view(tokens, shape.heads, shape.query_dim),
            rows,
            weights,
            shape,
            pages,
            self._plan.attention,
            self._plan.room,
        )
        return output.flatten(1)

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: DenseWeights | ExpertWeights
    ) -> tuple[Tensor, Tensor]:
        """Return the feed-forward of the normed branch + residual, summed over ranks, and the sum
        branch + residual."""
        total = residual + branch
        x = rms_norm(total, norm, self._config.norm_eps)
        if isinstance(weights, DenseWeights):
            return self._reduce(swiglu(x, weights.gate_up, weights.down)), total
        shape = self._config.experts
        chosen, experts = route(x, weights, shape)
        routed = mixture(x, weights.gate_up, weights.down, chosen, experts, shape.own.start)
        shared = swiglu(x, weights.shared.gate_up, weights.shared.down)
        return self._reduce(routed + shared), total


def route(x: Tensor, weights: ExpertWeights, shape: ExpertShape) -> tuple[Tensor, Tensor]:
    """Choose the experts of each token by score plus bias. Return weights [T, chosen] float32, the
    scores without bias, of sum `scale`, and expert ids [T, chosen] int64. x: [T, hidden]."""
    scores = functional.linear(x.float(), weights.router).sigmoid()
    experts = (scores + weights.bias).topk(shape.chosen, dim=-1).indices
    found = scores.gather(1, experts)
    return found / (found.sum(dim=-1, keepdim=True) + _WEIGHT_EPS) * shape.scale, experts
