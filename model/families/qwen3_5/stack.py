"""The family's layer stack, and its layer for drafting tokens.

Qwen35Model owns the weights. It knows pages and slots only as ids in a `Batch`, and memory only as
views of the given arena. A forward is a function of (batch, arena), so one model serves several
arenas. Calls on one arena come from one thread. The residual stream is a pair (branch, residual),
whose sum the next norm forms.

The draft layer is published as `mtp.*`. It stores an entry (a key and a value) for each token.
Entry j, at position j >= 1, is made from token j and the model's final hidden state of token j - 1.
So it depends on tokens 0 to j, as the model's own entries do, and can be in a page shared by
prompts. The hidden state after the last token is carried in the slot. Entry 0 is made from a hidden
state of zeros: it is written and never attended to. Entries need no attention and no feed-forward.
So a forward needs only one more product, with the projection's rows for keys and values.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.base import (
    Backend,
    BatchOperators,
    DraftOperators,
    Operators,
    StepOperators,
)
from tasuki.model.backends.torch_backend import TorchBackend, TorchOperators
from tasuki.model.config import DeltaNetConfig
from tasuki.model.drafts import DraftHead, NoDraftLayer
from tasuki.model.forward import Batch, Gather, LayerHooks, NullHooks, RowSpan, one_rank, put_rows
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.weights.layers import DraftWeights, GdnWeights, LayerWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Notice

from .weights import ModelWeights


def of_model(weights: ModelWeights) -> DraftWeights:
    """Return the draft layer's weights. Raises NoDraftLayer."""
    if weights.draft is None:
        raise NoDraftLayer(
            "the arena has a draft layer, for which the model has no weights: serve it with "
            "--draft-layer off"
        )
    return weights.draft


class Qwen35Model:
    """`Model` of this family."""

    def __init__(
        self,
        config: DeltaNetConfig,
        weights: ModelWeights,
        backend: Backend | None = None,
        gather: Gather = one_rank,
        drafts: DraftHead | None = None,
    ) -> None:
        """backend: the layers' operators; by default PyTorch's. gather: joins the ranks' logits if
        this rank computes only a part of the vocabulary. drafts: the tokens allowed as drafts;
        None: any token."""
        self.config = config
        self.weights = weights
        self.backend = backend or TorchBackend(config)
        self._gather = one_rank if config.head_rows is None else gather
        self._drafts = drafts

    @torch.inference_mode()
    def forward(
        self,
        batch: Batch,
        arena: Arena,
        hooks: LayerHooks,
        score: Callable[[HeadOf], None] | None = None,
    ) -> Tensor:
        found = self.run(batch, arena, hooks)
        if score is not None:
            score(found.head)
        last = self._on_device(batch.cu_seqlens[1:] - 1)
        # Compute the logits first, so a caller that needs only a token does not wait for the draft
        # layer.
        logits = found.head(last).float()
        if arena.layout.draft_layers:
            found.keep_entries(hooks)
        return logits

    def run(self, batch: Batch, arena: Arena, hooks: LayerHooks) -> "Qwen35Forward":
        """Run a batch through all layers."""
        operators = self.backend.bind(batch)
        tokens = self._on_device(batch.token_ids)
        branch, residual = self.layers(tokens, operators, arena, hooks, batch.pictures)
        return Qwen35Forward(self, tokens, branch, residual, operators, arena)

    def carried(self, arena: Arena) -> Tensor:
        return arena.views("carry")[0]

    def beside(self) -> "tuple[Qwen35Model, Notice]":
        return self, lambda: None

    @torch.inference_mode()
    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> tuple[Tensor, Tensor]:
        operators = self.backend.bind(batch)
        if not isinstance(operators, TorchOperators):
            device = self.weights.embedding.device
            raise NoDraftLayer(f"a batch of the host is not drafted behind on {device}")
        logits, after = self.guess(batch.token_ids, hidden, operators, arena)
        if self._drafts is not None:
            return self._drafts.spread(logits), after
        return self.whole(logits).float(), after

    @property
    def draft_ids(self) -> Tensor | None:
        return None if self._drafts is None else self._drafts.ids

    def guess(
        self, tokens: Tensor, hidden: Tensor, operators: DraftOperators, arena: Arena
    ) -> tuple[Tensor, Tensor]:
        """Return the draft layer's logits and hidden states for tokens [T], as draft_logits() does,
        on operators bound before. Logits have the model's dtype: [T, n] for draft_ids if drafts are
        limited, else the part of own_head(). A CUDA graph may capture it. Raises NoDraftLayer."""
        weights, draft = self.weights, of_model(self.weights)
        mixed = operators.join(tokens, hidden, weights.embedding, draft)
        hidden = operators.draft(mixed, draft, arena.views("kv")[-1])
        head = weights.head if self._drafts is None else self._drafts.head
        return operators.head(hidden, head), hidden

    def keep_entries(
        self,
        tokens: Tensor,
        branch: Tensor,
        residual: Tensor,
        operators: BatchOperators,
        arena: Arena,
        hooks: LayerHooks,
    ) -> None:
        """Store the draft layer's KV and carried hidden states for tokens [T]. branch, residual:
        the result of layers() for these tokens. REQUIRES: the arena has a draft layer. Raises
        NoDraftLayer."""
        layer, weights, draft = self.config.layers, self.weights, of_model(self.weights)
        hooks.before_layer(layer)
        entries, carry = operators.entries(), arena.views("carry")[0]
        hidden = entries.normed(branch, residual, weights.norm)
        hooks.mixer_inputs(layer, hidden)
        entries.write(tokens, hidden, weights.embedding, draft, arena.views("kv")[-1], carry)
        entries.carry_over(hidden, carry)
        hooks.cache_written(layer)
        hooks.after_layer(layer, _sum_of(branch, residual))

    def step(self, tokens: Tensor, operators: StepOperators, arena: Arena) -> tuple[Tensor, Tensor]:
        """Run a decode step's tokens [B] through layers(), and return the result. Store the draft
        layer's KV and hidden states if the arena has such a layer. A CUDA graph may capture it."""
        if not arena.layout.draft_layers:
            return self.layers(tokens, operators, arena, NullHooks())
        weights, draft, carry = self.weights, of_model(self.weights), arena.views("carry")[0]
        entries = operators.step_entries()
        with entries.beside():
            kv = arena.views("kv")[-1]
            entries.write(tokens, None, weights.embedding, draft, kv, carry)
        branch, residual = self.layers(tokens, operators, arena, NullHooks())
        entries.carry_over(branch, residual, weights.norm, carry)
        return branch, residual

    @torch.inference_mode()
    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        operators = self.backend.bind(batch)
        for layer, weights in enumerate(self.weights.layers):
            mixer = weights.mixer
            if isinstance(mixer, GdnWeights):
                states = arena.view(layer, "conv"), arena.view(layer, "ssm")
                operators.gdn(inputs[layer], mixer, *states)
        if arena.layout.draft_layers:
            operators.entries().carry_over(inputs[self.config.layers], arena.views("carry")[0])

    def head(self, branch: Tensor, residual: Tensor, operators: Operators) -> Tensor:
        """Return the logits [n, vocab] in the model's dtype, for any rows of layers()' result."""
        return self._gather(self.own_head(branch, residual, operators))

    def own_head(self, branch: Tensor, residual: Tensor, operators: Operators) -> Tensor:
        """Return the logits as head() does, for this rank's part of the vocabulary."""
        weights = self.weights
        return operators.norm_head(branch, residual, weights.norm, weights.head)

    def whole(self, logits: Tensor) -> Tensor:
        return self._gather(logits)

    @property
    def draft_rows(self) -> Matrix | None:
        return None if self._drafts is None else self._drafts.head

    @property
    def own_slice(self) -> Slice | None:
        rows = self.config.head_rows
        return None if rows is None else Slice(rows.start, self._gather)

    def layers(
        self,
        token_ids: Tensor,
        operators: Operators,
        arena: Arena,
        hooks: LayerHooks,
        pictures: Sequence[RowSpan] = (),
    ) -> tuple[Tensor, Tensor]:
        """Run token_ids [T] through all layers. Return the last branch and the residual stream, [T,
        hidden], not yet added. A CUDA graph may capture it: it never waits on the host. pictures:
        rows in place of embeddings."""
        residual = put_rows(functional.embedding(token_ids, self.weights.embedding), pictures)
        branch = None
        for layer, weights in enumerate(self.weights.layers):
            hooks.before_layer(layer)
            mixed, residual = self._mix(layer, weights, branch, residual, operators, arena, hooks)
            hooks.cache_written(layer)
            branch = operators.project(mixed, weights.mixer.out_proj)
            branch, residual = operators.feed_forward(
                branch, residual, weights.mlp_norm, weights.mlp
            )
            hooks.after_layer(layer, _sum_of(branch, residual))
        assert branch is not None
        return branch, residual

    def _on_device(self, indices: Tensor) -> Tensor:
        return indices.to(self.weights.embedding.device)

    def _mix(
        self,
        layer: int,
        weights: LayerWeights,
        branch: Tensor | None,
        residual: Tensor,
        operators: Operators,
        arena: Arena,
        hooks: LayerHooks,
    ) -> tuple[Tensor, Tensor]:
        """Run the layer's mixer. Return its output before out_proj, and the residual stream."""
        mixer = weights.mixer
        projected, residual = operators.norm_project(
            branch, residual, weights.mixer_norm, mixer.in_proj
        )
        hooks.mixer_inputs(layer, projected)
        if isinstance(mixer, GdnWeights):
            states = arena.view(layer, "conv"), arena.view(layer, "ssm")
            mixed = operators.gdn(projected, mixer, *states)
        else:
            mixed = operators.attention(projected, mixer, arena.view(layer, "kv"))
        return mixed, residual


def _sum_of(branch: Tensor, residual: Tensor) -> Callable[[], Tensor]:
    return lambda: branch + residual


@dataclass(frozen=True)
class Qwen35Forward:
    """`ForwardResult` of this family. tokens [T]: the forward's token ids; branch, residual [T,
    hidden]: the residual stream after the last layer, not yet added."""

    model: Qwen35Model
    tokens: Tensor
    branch: Tensor
    residual: Tensor
    operators: BatchOperators
    arena: Arena

    def head(self, rows: Tensor) -> Tensor:
        return self.model.head(self.branch[rows], self.residual[rows], self.operators)

    def own_head(self) -> Tensor:
        return self.model.own_head(self.branch, self.residual, self.operators)

    def keep_entries(self, hooks: LayerHooks) -> None:
        self.model.keep_entries(
            self.tokens, self.branch, self.residual, self.operators, self.arena, hooks
        )
