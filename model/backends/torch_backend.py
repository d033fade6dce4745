"""The layer operators in PyTorch: the implementation for CPUs, and the reference for testing every
kernel."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import DeltaNetConfig, MoeShape
from tasuki.model.forward import (
    Batch,
    Reduce,
    RowSpan,
    one_rank,
    put_rows,
)
from tasuki.model.ops.attention.reference import (
    AttentionPlan,
    paged_attention,
    plan_attention,
    write_pages,
)
from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary
from tasuki.model.ops.draft.reference import CarryPlan, carry_over, plan_carry, states_before
from tasuki.model.ops.gdn.reference import GdnPlans, gated_delta_rule
from tasuki.model.ops.gdn.reference_conv import ConvPlan, causal_conv, plan_conv
from tasuki.model.ops.gdn.reference_rounding import StateNoise, StateRounding
from tasuki.model.ops.linear.reference import EXACT, Products
from tasuki.model.ops.moe.reference import gated_shared, mixture, route
from tasuki.model.ops.norm.reference import gated_rms_norm, l2_norm, rms_norm
from tasuki.model.ops.row_room import RowRoom
from tasuki.model.weights.layers import (
    AttentionWeights,
    DraftWeights,
    GdnWeights,
    MlpWeights,
    MoeWeights,
)
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.layout import PAGE_TOKENS


def attention_of(batch: Batch) -> AttentionPlan:
    """Return the plan of a forward's attention."""
    return plan_attention(
        batch.cu_seqlens.diff().tolist(),
        batch.context_lens.tolist(),
        batch.page_table,
        batch.positions,
        PAGE_TOKENS,
        batch.stepped,
    )


def mix_states(
    projected: Tensor,
    weights: GdnWeights,
    conv: Tensor,
    ssm: Tensor,
    config: DeltaNetConfig,
    conv_plan: ConvPlan,
    gdn_plans: GdnPlans,
    rounding: StateRounding | None = None,
) -> tuple[Tensor, Tensor]:
    """Run the convolution and the rule of a Gated DeltaNet mixer, and store the planned states.
    Return its output and its gate, both [T, value_heads, value_dim]. projected: [T, q | k | v | z |
    b | a]; conv, ssm: the layer's states, by slot. rounding: of bfloat16 states; None: the layer's
    noise."""
    tokens, heads = len(projected), config.value_heads
    keys, values = config.key_heads * config.key_dim, heads * config.value_dim
    mixed, z, b, a = projected.split_with_sizes(
        [config.conv_channels, values, heads, heads], dim=-1
    )
    mixed = causal_conv(mixed, weights.conv, conv, conv_plan).float()
    qk = l2_norm(mixed[:, : 2 * keys].view(tokens, 2, config.key_heads, config.key_dim))
    # Value head j belongs to key head j // ratio: repeats are neighbours.
    ratio = heads // config.key_heads
    q, k = qk.unsqueeze(3).expand(-1, -1, -1, ratio, -1).flatten(2, 3).unbind(1)
    output = gated_delta_rule(
        q * config.key_dim**-0.5,
        k,
        mixed[:, 2 * keys :].view(tokens, heads, config.value_dim),
        weights.decay_rate * functional.softplus(a.float() + weights.dt_bias),
        b.float().sigmoid(),
        ssm,
        gdn_plans.of_states(ssm.dtype),
        rounding or StateNoise(weights.number, config.first_value_head),
    )
    return output, z.view(tokens, heads, config.value_dim)


@dataclass(frozen=True)
class TorchPlan:
    """Data shared by all layers of one forward, so layers have no index arithmetic. cos, sin: [T,
    1, rotary_dim / 2] float32. entry_cos, entry_sin: those of the draft layer. carry: plan of the
    carried hidden states; None without a draft layer. room: memory for the KV gathered from pages.
    pictures: rows in place of embeddings."""

    attention: AttentionPlan
    conv: ConvPlan
    gdn: GdnPlans
    cos: Tensor
    sin: Tensor
    entry_cos: Tensor
    entry_sin: Tensor
    carry: CarryPlan | None
    room: RowRoom
    pictures: tuple[RowSpan, ...]

    @staticmethod
    def of(
        batch: Batch, config: DeltaNetConfig, angles: RotaryAngles, room: RowRoom
    ) -> "TorchPlan":
        lengths = batch.cu_seqlens.diff().tolist()
        saves = batch.saves()
        if batch.rope is None:
            turns = entry_turns = angles.table(batch.positions)
        else:
            turns = angles.axis_table(batch.rope.tokens)
            entry_turns = angles.axis_table(batch.rope.entries)
        return TorchPlan(
            attention=attention_of(batch),
            conv=plan_conv(lengths, batch.read_slots, saves, config.conv_width - 1),
            gdn=GdnPlans.of(batch),
            cos=turns[0],
            sin=turns[1],
            entry_cos=entry_turns[0],
            entry_sin=entry_turns[1],
            carry=(
                plan_carry(batch.cu_seqlens, batch.read_slots, saves)
                if config.draft_layers
                else None
            ),
            room=room,
            pictures=batch.pictures,
        )

    def embedded(self, tokens: Tensor, embedding: Tensor) -> Tensor:
        """Return the first layer's input for tokens [T]: embeddings, and the rows of pictures."""
        return put_rows(functional.embedding(tokens, embedding), self.pictures)

    def of_entries(self) -> "TorchPlan":
        """Return the plan of the draft layer's attention."""
        later = self.attention.without_first_key()
        return replace(self, attention=later, cos=self.entry_cos, sin=self.entry_sin)


class TorchBackend:
    """The back end in PyTorch. config: the model's config with one rank's heads and widths, like
    the weights. It owns the memory for KV gathered from pages, shared by successive forwards.
    Thread rule: one thread."""

    def __init__(
        self,
        config: DeltaNetConfig,
        reduce: Reduce = one_rank,
        axes: Tensor | None = None,
        products: Products = EXACT,
    ) -> None:
        """axes: as in RotaryAngles. products: with all matrices, in both phases."""
        self._config = config
        self._angles = replace(RotaryAngles.of(config), axes=axes)
        self._reduce = reduce
        self._room = RowRoom()
        self._products = products

    def bind(self, batch: Batch) -> "TorchOperators":
        plan = TorchPlan.of(batch, self._config, self._angles, self._room)
        return TorchOperators(self._config, plan, self._reduce, self._products)


class TorchOperators:
    """PyTorch's `Operators` of one forward. It holds the forward's plan and none of the arena."""

    def __init__(
        self, config: DeltaNetConfig, plan: TorchPlan, reduce: Reduce, products: Products = EXACT
    ) -> None:
        self._config = config
        self._plan = plan
        self._reduce = reduce
        self._products = products

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        total = residual if branch is None else residual + branch
        return self._products.product(rms_norm(total, norm, self._config.norm_eps), weight), total

    def norm_head(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> Tensor:
        return self.norm_project(branch, residual, norm, weight)[0]

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        return self._reduce(self._products.product(x, weight))

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        config, plan = self._config, self._plan
        output, gate = mix_states(projected, weights, conv, ssm, config, plan.conv, plan.gdn)
        return gated_rms_norm(output, gate, weights.norm, config.norm_eps).flatten(1)

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        config, plan = self._config, self._plan
        tokens, heads, dim = projected.shape[0], config.query_heads, config.head_dim
        width = config.kv_heads * dim
        gated, k, v = projected.split_with_sizes([2 * heads * dim, width, width], dim=-1)
        q, gate = gated.view(tokens, heads, 2 * dim).chunk(2, dim=-1)
        q = rms_norm(q, weights.q_norm, config.norm_eps)
        k = rms_norm(k.view(tokens, config.kv_heads, dim), weights.k_norm, config.norm_eps)
        output = paged_attention(
            apply_rotary(q, plan.cos, plan.sin),
            apply_rotary(k, plan.cos, plan.sin),
            v.view(tokens, config.kv_heads, dim),
            kv,
            plan.attention,
            plan.room,
        )
        return (output * gate.sigmoid()).flatten(1)

    def entries(self) -> "TorchEntries":
        assert self._plan.carry is not None, "the config has no draft layer"
        return TorchEntries(self._config, self._plan, self._plan.carry, self._products)

    def head(self, hidden: Tensor, weight: Matrix) -> Tensor:
        return self._products.product(hidden, weight)

    def join(
        self, tokens: Tensor, before: Tensor, embedding: Tensor, weights: DraftWeights
    ) -> Tensor:
        embedded = self._plan.embedded(tokens, embedding)
        return _join(embedded, before, weights, self._config.norm_eps, self._products)

    def draft(self, x: Tensor, weights: DraftWeights, kv: Tensor) -> Tensor:
        layer = weights.layer
        projected, residual = self.norm_project(
            None, x, layer.mixer_norm, weights.attention.in_proj
        )
        later = self._plan.of_entries()
        mixed = TorchOperators(self._config, later, self._reduce, self._products).attention(
            projected, weights.attention, kv
        )
        branch = self.project(mixed, weights.attention.out_proj)
        branch, residual = self.feed_forward(branch, residual, layer.mlp_norm, layer.mlp)
        return rms_norm(residual + branch, weights.norm, self._config.norm_eps)

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        total = residual + branch
        x = rms_norm(total, norm, self._config.norm_eps)
        return self._reduce(self._experts(x, weights)), total

    def _experts(self, x: Tensor, weights: MlpWeights | MoeWeights) -> Tensor:
        products = self._products
        if isinstance(weights, MlpWeights):
            return products.swiglu(x, weights.gate_up, weights.down)
        shape = self._config.feed_forward
        assert isinstance(shape, MoeShape)
        chosen, experts = route(x, weights.router, shape.chosen)
        first = shape.own.start
        routed = mixture(x, weights.gate_up, weights.down, chosen, experts, first, products)
        shared = weights.shared
        return routed + gated_shared(x, shared.gate_up, shared.down, weights.shared_gate, products)


@dataclass(frozen=True)
class TorchEntries:
    """PyTorch's `EntryOperators` of one forward: they store the draft layer's KV."""

    config: DeltaNetConfig
    plan: TorchPlan
    carry_plan: CarryPlan
    products: Products

    def normed(self, branch: Tensor, residual: Tensor, norm: Tensor) -> Tensor:
        return rms_norm(branch + residual, norm, self.config.norm_eps)

    def write(
        self,
        tokens: Tensor,
        hidden: Tensor,
        embedding: Tensor,
        weights: DraftWeights,
        kv: Tensor,
        carry: Tensor,
    ) -> None:
        config, attention, eps = self.config, weights.attention, self.config.norm_eps
        before = states_before(hidden, carry, self.carry_plan)
        x = _join(self.plan.embedded(tokens, embedding), before, weights, eps, self.products)
        rows = 2 * config.kv_heads * config.head_dim
        normed = rms_norm(x, weights.layer.mixer_norm, eps)
        projected = self.products.product(normed, attention.in_proj.last_rows(rows))
        k, v = projected.view(len(x), 2, config.kv_heads, config.head_dim).unbind(1)
        plan = self.plan
        k = apply_rotary(rms_norm(k, attention.k_norm, eps), plan.entry_cos, plan.entry_sin)
        write_pages(k, v, kv, self.plan.attention)

    def carry_over(self, hidden: Tensor, carry: Tensor) -> None:
        carry_over(hidden, carry, self.carry_plan)


def _join(
    embedded: Tensor, before: Tensor, weights: DraftWeights, eps: float, products: Products
) -> Tensor:
    parts = (
        rms_norm(embedded, weights.embedding_norm, eps),
        rms_norm(before, weights.hidden_norm, eps),
    )
    return products.product(torch.cat(parts, dim=-1), weights.fc)
