"""The operators of a forward over prompts in Triton: any number of tokens per sequence, after any
context.

The plan is made on the host and moved to the device by asynchronous copies; layers wait for
nothing. Rows of prompts and rows of answers (the two phases) are computed separately.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import (
    BF16_STEPS,
    Batch,
    Phase,
    PhaseActivations,
    Reduce,
    RowSpan,
)
from tasuki.model.ops.attention.prefill import paged_attention_prefill
from tasuki.model.ops.attention.prefill_tiles import PrefillTiles
from tasuki.model.ops.attention.qk_norm_rope_gate import RopeAxes, TokenPlaces, qk_norm_rope_gate
from tasuki.model.ops.gdn.prefill import gdn_prefill
from tasuki.model.ops.gdn.prefill_plan import GdnPrefillPlans
from tasuki.model.ops.linear.normed_product import normed_product
from tasuki.model.ops.linear.phase_product import phase_product, phase_swiglu
from tasuki.model.ops.moe.experts import moe
from tasuki.model.ops.norm.rms_norm import add_rms_norm, rms_norm
from tasuki.model.weights.layers import AttentionWeights, GdnWeights, MlpWeights, MoeWeights
from tasuki.model.weights.matrix import Matrix

from .triton_entries import PromptCarry, PromptEntries


@dataclass(frozen=True)
class PhasePart:
    """The rows of a forward in one phase. index [n] int64 on the device: their row numbers; None:
    all rows of the forward. rows [1] int32: n, the number of rows."""

    phase: Phase
    index: Tensor | None
    rows: Tensor


@dataclass(frozen=True)
class PhaseRows:
    """The rows of a forward, divided by phase: one part for each phase present, or one for all if
    both have the same activations."""

    parts: tuple[PhasePart, ...]

    @staticmethod
    def of(batch: Batch, rows: Tensor, activations: PhaseActivations = BF16_STEPS) -> "PhaseRows":
        """Divide the rows of a batch by phase, and return the parts. The batch is in host memory.
        rows [1] int32 on the device: number of all rows. activations: those of both phases."""
        if activations.steps is activations.prompts:
            return PhaseRows((PhasePart(Phase.PROMPT, None, rows),))
        stepped = [i in batch.stepped for i in range(len(batch.write_slots))]
        if len(set(stepped)) == 1:
            phase = Phase.STEP if stepped[0] else Phase.PROMPT
            return PhaseRows((PhasePart(phase, None, rows),))
        of_row = torch.repeat_interleave(torch.tensor(stepped), batch.cu_seqlens.diff())
        parts = []
        for phase, wanted in ((Phase.PROMPT, ~of_row), (Phase.STEP, of_row)):
            index = wanted.nonzero()[:, 0]
            count = torch.tensor([len(index)], dtype=torch.int32)
            parts.append(PhasePart(phase, _moved(index, rows), _moved(count, rows)))
        return PhaseRows(tuple(parts))

    def each(self, x: Tensor, compute: Callable[[Tensor, PhasePart], Tensor]) -> Tensor:
        """Call compute() on the rows of each phase in x [T, ...]. Return the results in the row
        order of x."""
        first = self.parts[0]
        if first.index is None:
            return compute(x, first)
        found = [compute(x[part.index], part) for part in self.parts]
        output = found[0].new_empty(len(x), *found[0].shape[1:])
        for part, rows in zip(self.parts, found, strict=True):
            output[part.index] = rows
        return output


def _moved(host: Tensor, like: Tensor) -> Tensor:
    if like.device.type == "cpu":
        return host
    return host.pin_memory().to(like.device, non_blocking=True)


@dataclass(frozen=True)
class PrefillPlan:
    """Data shared by all layers of one forward over prompts. entry_places: places of the draft
    layer's entries, with their own rotary positions. carry: slots of the draft layer's hidden
    states; None without a draft layer. pictures: rows in place of embeddings, on the device."""

    phases: PhaseRows
    gdn: GdnPrefillPlans
    places: TokenPlaces
    entry_places: TokenPlaces
    tiles: PrefillTiles
    carry: PromptCarry | None
    pictures: tuple[RowSpan, ...] = ()

    @staticmethod
    def of(
        batch: Batch,
        config: DeltaNetConfig,
        dtype: torch.dtype,
        device: torch.device,
        axes: Tensor | None = None,
        activations: PhaseActivations = BF16_STEPS,
    ) -> "PrefillPlan":
        """Return the plan for a batch in host memory. dtype: dtype of activations. axes: axis of
        each rotary pair, int32 on the device. activations: their form in each phase. REQUIRES:
        axes, if the batch has rotary positions."""
        lengths = batch.cu_seqlens.diff()
        counts, contexts = lengths.tolist(), batch.context_lens.tolist()
        owners = torch.repeat_interleave(torch.arange(len(counts)), lengths)
        tokens = torch.tensor([sum(counts)])
        pages = _padded(batch.page_table)
        tables = [batch.positions, owners, tokens, pages.flatten()]
        if batch.rope is not None:
            tables += [_padded(some).flatten() for some in (batch.rope.tokens, batch.rope.entries)]
        packed = torch.cat([_padded(table) for table in tables]).int()
        if device.type == "cuda":
            packed = packed.pin_memory()
        moved = torch.split(
            packed.to(device, non_blocking=True), [len(_padded(table)) for table in tables]
        )
        positions, owners, rows, pages, *turns = (
            place[: len(table)] for place, table in zip(moved, tables, strict=True)
        )
        places = entry_places = TokenPlaces(positions, owners, pages.view(len(counts), -1), rows)
        if turns:
            assert axes is not None
            own, entries = (RopeAxes(some.view(3, -1), axes) for some in turns)
            places, entry_places = replace(places, rope=own), replace(places, rope=entries)
        return PrefillPlan(
            phases=PhaseRows.of(batch, rows, activations),
            gdn=GdnPrefillPlans(
                lengths=tuple(counts),
                read_slots=tuple(batch.read_slots.tolist()),
                saves=tuple(batch.saves()),
                before=tuple(contexts),
                device=device,
            ),
            places=places,
            entry_places=entry_places,
            tiles=PrefillTiles.of(counts, contexts, config, dtype, device),
            carry=PromptCarry.of(batch, device) if config.draft_layers else None,
            pictures=tuple(
                RowSpan(span.first, span.rows.to(device, dtype)) for span in batch.pictures
            ),
        )


def _padded(table: Tensor) -> Tensor:
    """Return the table with its last dimension padded to a multiple of 16. Kernels are compiled
    anew for other strides, and for tables at addresses other than multiples of 16 bytes."""
    return functional.pad(table, (0, -table.shape[-1] % 16))


@dataclass(frozen=True)
class TritonPrefill:
    """Triton's `Operators` of one forward over prompts. rotary: angles from `rotary_cache`; side: a
    second stream to run the shared expert in parallel with the routed experts. activations: those
    of both phases."""

    config: DeltaNetConfig
    plan: PrefillPlan
    rotary: Tensor
    side: torch.cuda.Stream
    reduce: Reduce
    activations: PhaseActivations = BF16_STEPS

    def norm_project(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> tuple[Tensor, Tensor]:
        part = self.plan.phases.parts[0]
        if part.index is None:
            eps, activations = self.config.norm_eps, self.activations.of(part.phase)
            return normed_product(branch, residual, norm, eps, weight, activations)
        normed, residual = self._normed(branch, residual, norm)
        return self._product(normed, weight), residual

    def norm_head(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor, weight: Matrix
    ) -> Tensor:
        normed, _ = self._normed(branch, residual, norm)
        return phase_product(normed, weight, self.activations.steps)

    def project(self, x: Tensor, weight: Matrix) -> Tensor:
        return self.reduce(self._product(x, weight))

    def gdn(self, projected: Tensor, weights: GdnWeights, conv: Tensor, ssm: Tensor) -> Tensor:
        plan = self.plan.gdn.of_states(ssm.dtype)
        return gdn_prefill(projected, weights, self.config, conv, ssm, plan)

    def attention(self, projected: Tensor, weights: AttentionWeights, kv: Tensor) -> Tensor:
        places = self.plan.places
        q = qk_norm_rope_gate(projected, weights, self.config, self.rotary, places, kv)
        return paged_attention_prefill(
            q, projected, self.config, kv, places.page_table, self.plan.tiles
        )

    def feed_forward(
        self, branch: Tensor, residual: Tensor, norm: Tensor, weights: MlpWeights | MoeWeights
    ) -> tuple[Tensor, Tensor]:
        part = self.plan.phases.parts[0]
        if isinstance(weights, MlpWeights) and part.index is None:
            both, residual = self.norm_project(branch, residual, norm, weights.gate_up)
            output = phase_swiglu(both, weights.down, self.activations.of(part.phase))
            return self.reduce(output), residual
        x, residual = add_rms_norm(branch, residual, norm, self.config.norm_eps)
        if isinstance(weights, MoeWeights):
            return self.reduce(self._moe(x, weights)), residual
        return self.reduce(self._mlp(x, weights)), residual

    def entries(self) -> PromptEntries:
        plan = self.plan
        assert plan.carry is not None, "the config has no draft layer"
        return PromptEntries(
            *(self.config, self.rotary, plan.entry_places, plan.carry.read_slots, self._product),
            plan.carry,
            pictures=plan.pictures,
        )

    def _normed(
        self, branch: Tensor | None, residual: Tensor, norm: Tensor
    ) -> tuple[Tensor, Tensor]:
        eps = self.config.norm_eps
        if branch is None:
            return rms_norm(residual, norm, eps), residual
        return add_rms_norm(branch, residual, norm, eps)

    def _product(self, x: Tensor, weight: Matrix) -> Tensor:
        """Return x [T, k] times weight [n, k] transposed, without a sum over ranks."""

        def compute(x: Tensor, part: PhasePart) -> Tensor:
            return phase_product(x, weight, self.activations.of(part.phase))

        return self.plan.phases.each(x, compute)

    def _mlp(self, x: Tensor, weights: MlpWeights) -> Tensor:
        def compute(x: Tensor, part: PhasePart) -> Tensor:
            activations = self.activations.of(part.phase)
            both = phase_product(x, weights.gate_up, activations)
            return phase_swiglu(both, weights.down, activations)

        return self.plan.phases.each(x, compute)

    def _moe(self, x: Tensor, weights: MoeWeights) -> Tensor:
        def compute(x: Tensor, part: PhasePart) -> Tensor:
            activations = self.activations.of(part.phase)
            return moe(x, weights, self.config, part.rows, self.side, activations)

        return self.plan.phases.each(x, compute)
