"""Qwen3.5 text models, dense and MoE: the layer stack, and the layer that drafts tokens.

Qwen35Model owns the weights; knows pages and slots only as ids in a `Batch` and memory only as
views of the arena it is given. A forward is a function of (batch, arena), so one model serves
several arenas; calls on one arena come from one thread.

The draft layer is published as `mtp.*`. Its entry j, at position j >= 1, is its key and value of
token j and of the model's final hidden state of token j - 1. So it depends on tokens 0 to j, as the
model's own entries do, and may stand in a page that prompts share; the hidden state behind the last
token is carried in the slot. Entry 0 is of a hidden state of zeros: it is written and never
attended to. Entries need no attention and no feed-forward, so a forward costs a product with two
rows of heads more.

DraftHead: the tokens that a draft may be, and the rows of the model's head that expect those.
Tokens are drawn from the whole head, so any other token costs only a draft that does not hold.
Tokenizers number the tokens that they merge most often first, so a draft from the first ids costs a
fraction of the head and misses little. Special, stop and tool tokens have the last ids and are
wanted as often.

draft_tokens() drafts the tokens behind those drawn last: one, then each behind the one before. It
writes the entries at the drafts' positions, which the forwards of those tokens write over. A draft
is drawn with the temperature and the noise of its position, as the model will draw there: a likely
token is a likely draft.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.backends.base import (
    Backend,
    BatchOperators,
    DraftOperators,
    EntryOperators,
    Operators,
    StepEntries,
    StepOperators,
)
from tasuki.model.backends.torch_backend import TorchBackend, TorchOperators
from tasuki.model.forward import Gather, one_rank
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.reference import sample
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.weights.layers import (
    DraftWeights,
    GdnWeights,
    LayerWeights,
    ModelWeights,
    for_device,
)
from tasuki.model.weights.matrix import Kind, Matrix
from tasuki.pycache.arena import Arena

from .config import ModelConfig
from .config_json import ModelConfigError
from .forward import Batch, LayerHooks, NullHooks, SequenceSlice


class NoDraftLayer(Exception):
    """An arena has a draft layer that this model cannot compute."""


def of_model(weights: ModelWeights) -> DraftWeights:
    """Raises NoDraftLayer."""
    if weights.draft is None:
        raise NoDraftLayer(
            "the arena has a draft layer, for which the model has no weights: serve it with "
            "--draft-layer off"
        )
    return weights.draft


def keep_entries(
    tokens: Tensor, hidden: Tensor, weights: ModelWeights, entries: EntryOperators, arena: Arena
) -> None:
    """Write the entries of a forward's tokens into their pages, and what is carried over into every
    slot that the forward writes. tokens [T]; hidden [T, width]: after the model's final norm.
    Raises NoDraftLayer."""
    draft, carry = of_model(weights), arena.carry[0]
    entries.write(tokens, hidden, weights.embedding, draft, arena.kv[-1], carry)
    entries.carry_over(hidden, carry)


def begin_step(tokens: Tensor, weights: ModelWeights, entries: StepEntries, arena: Arena) -> None:
    """Start to write the entries of a decode step's tokens [B], beside what follows. Raises
    NoDraftLayer."""
    draft = of_model(weights)
    with entries.beside():
        entries.write(tokens, None, weights.embedding, draft, arena.kv[-1], arena.carry[0])


FILE = "draft_vocab.json"
FIRST_IDS = 32_768


def draft_ids(folder: Path, vocab: int, eos_ids: Collection[int]) -> Tensor | None:
    """Ascending, [n] int64: those that the folder's draft_vocab.json lists, else the first ones and
    all that its tokenizer adds or that end an answer. None: all of the vocabulary. Raises
    ModelConfigError."""
    listed = _listed(folder / FILE, vocab)
    if listed is None and vocab <= FIRST_IDS:
        return None
    if listed is None:
        beyond = {*_added(folder / "tokenizer.json"), *eos_ids}
        listed = {*range(FIRST_IDS), *(token for token in beyond if token < vocab)}
    return None if len(listed) == vocab else torch.tensor(sorted(listed))


def _listed(path: Path, vocab: int) -> set[int] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise ModelConfigError(f"{path}: cannot be read ({error}); mend it or remove it") from error
    whole = isinstance(found, list) and all(type(token) is int for token in found)
    if not whole or not found or not 0 <= min(found) <= max(found) < vocab:
        raise ModelConfigError(
            f"{path}: is no list of token ids from 0 to {vocab - 1}; mend it or remove it"
        )
    return set(found)


def _added(path: Path) -> set[int]:
    """Ids; none where there is no tokenizer that can be read: then it adds nothing known."""
    try:
        added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens") or []
        return {int(token["id"]) for token in added}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


@dataclass(frozen=True)
class DraftHead:
    """ids [n] int64 of a vocabulary of `vocab` tokens; head [n, hidden]: their rows, a copy."""

    ids: Tensor
    head: Matrix
    vocab: int

    @staticmethod
    def of(head: Matrix, ids: Tensor | None) -> "DraftHead | None":
        """head: the model's. None where a draft may be any token, or the head is quantised: its
        rows share scales."""
        if ids is None or head.kinds != {Kind.PLAIN}:
            return None
        rows = head.plain.index_select(0, ids.to(head.plain.device))
        return DraftHead(ids.to(rows.device), Matrix.of(for_device(rows)), head.shape[0])

    def spread(self, logits: Tensor) -> Tensor:
        """[T, vocab] float32 of logits [T, n] of its tokens; of others -inf."""
        found = logits.new_full((len(logits), self.vocab), -torch.inf, dtype=torch.float32)
        found[:, self.ids] = logits.float()
        return found


class Qwen35Model:
    """REQUIRES: the arena's layout is config.cache_layout(...); ids of a batch are inside it."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        backend: Backend | None = None,
        gather: Gather = one_rank,
        drafts: DraftHead | None = None,
    ) -> None:
        """backend: PyTorch's operators if none is given. gather: of logits, where the config says
        that a part of the vocabulary's are computed here. drafts: what the draft layer may propose;
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
        """Logits [B, vocab] float32 of each sequence's last token; pages and slots are written.
        score: is given what makes logits of other rows, if they are wanted."""
        operators = self.backend.bind(batch)
        tokens = self._on_device(batch.token_ids)
        branch, residual = self.layers(tokens, operators, arena, hooks)
        if score is not None:
            score(lambda rows: self.head(branch[rows], residual[rows], operators))
        last = self._on_device(batch.cu_seqlens[1:] - 1)
        # First, so that nobody waits for the draft layer's window who only wants a token.
        logits = self.head(branch[last], residual[last], operators).float()
        if arena.layout.draft_layers:
            self.keep_entries(tokens, branch, residual, operators, arena, hooks)
        return logits

    @torch.inference_mode()
    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> tuple[Tensor, Tensor]:
        """What the draft layer expects behind each of the batch's tokens: (logits [T, vocab]
        float32, hidden states [T, hidden]). hidden [T, hidden]: of the token before each, the
        model's behind its final norm, or of a draft what was returned here. Writes their entries.
        REQUIRES: every token stands at position 1 or later; entries of those before are there."""
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
        """[n] int64, ascending: the tokens that the draft layer may propose; None: any."""
        return None if self._drafts is None else self._drafts.ids

    def guess(
        self, tokens: Tensor, hidden: Tensor, operators: DraftOperators, arena: Arena
    ) -> tuple[Tensor, Tensor]:
        """As draft_logits(), of tokens [T] that the operators are bound to, but for the logits: in
        the model's dtype, [T, n] of draft_ids where only these may be drafts, else as own_head()
        has them. A graph may capture it. Raises NoDraftLayer."""
        weights, draft = self.weights, of_model(self.weights)
        mixed = operators.join(tokens, hidden, weights.embedding, draft)
        hidden = operators.draft(mixed, draft, arena.kv[-1])
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
        """What the draft layer keeps of tokens [T] that layers() was given and what it returned.
        REQUIRES: the arena has a draft layer. Raises NoDraftLayer."""
        layer = self.config.layers
        of_model(self.weights)
        hooks.before_layer(layer)
        entries = operators.entries()
        hidden = entries.normed(branch, residual, self.weights.norm)
        hooks.mixer_inputs(layer, hidden)
        keep_entries(tokens, hidden, self.weights, entries, arena)
        hooks.cache_written(layer)
        hooks.after_layer(layer, branch, residual)

    def step(self, tokens: Tensor, operators: StepOperators, arena: Arena) -> tuple[Tensor, Tensor]:
        """As layers(), of the tokens [B] of a decode step, with what the draft layer keeps of them
        where the arena has one. A graph may capture it."""
        if not arena.layout.draft_layers:
            return self.layers(tokens, operators, arena, NullHooks())
        entries = operators.step_entries()
        begin_step(tokens, self.weights, entries, arena)
        branch, residual = self.layers(tokens, operators, arena, NullHooks())
        entries.carry_over(branch, residual, self.weights.norm, arena.carry[0])
        return branch, residual

    @torch.inference_mode()
    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        """Store the batch's states alone, of tokens that went through the layers before. inputs:
        what hooks.mixer_inputs() had of each of them, by layer; those of layers that keep a state
        are read."""
        operators = self.backend.bind(batch)
        for layer, weights in enumerate(self.weights.layers):
            mixer = weights.mixer
            if isinstance(mixer, GdnWeights):
                index = arena.layout.kind_index(layer)
                operators.gdn(inputs[layer], mixer, arena.conv[index], arena.ssm[index])
        if arena.layout.draft_layers:
            operators.entries().carry_over(inputs[self.config.layers], arena.carry[0])

    def head(self, branch: Tensor, residual: Tensor, operators: Operators) -> Tensor:
        """Logits [n, vocab] in the model's dtype of what layers() returned, or some rows of it."""
        return self._gather(self.own_head(branch, residual, operators))

    def own_head(self, branch: Tensor, residual: Tensor, operators: Operators) -> Tensor:
        """As head(), of the part of the vocabulary that is computed here."""
        weights = self.weights
        return operators.norm_head(branch, residual, weights.norm, weights.head)

    def whole(self, logits: Tensor) -> Tensor:
        """What head() returns where own_head() has returned these."""
        return self._gather(logits)

    @property
    def own_slice(self) -> Slice | None:
        """What own_head() computes; None: all of the vocabulary."""
        rows = self.config.head_rows
        return None if rows is None else Slice(rows.start, self._gather)

    def layers(
        self, token_ids: Tensor, operators: Operators, arena: Arena, hooks: LayerHooks
    ) -> tuple[Tensor, Tensor]:
        """The last layer's branch and the residual stream that it is still to be added to, both
        [T, hidden], of token_ids [T]. Waits for nothing on the host, so a graph may capture it."""
        residual = functional.embedding(token_ids, self.weights.embedding)
        branch = None
        for layer, weights in enumerate(self.weights.layers):
            hooks.before_layer(layer)
            mixed, residual = self._mix(layer, weights, branch, residual, operators, arena, hooks)
            hooks.cache_written(layer)
            branch = operators.project(mixed, weights.mixer.out_proj)
            branch, residual = operators.feed_forward(
                branch, residual, weights.mlp_norm, weights.mlp
            )
            hooks.after_layer(layer, branch, residual)
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
        """(The mixer's output, before its projection; the residual stream.)"""
        index, mixer = arena.layout.kind_index(layer), weights.mixer
        projected, residual = operators.norm_project(
            branch, residual, weights.mixer_norm, mixer.in_proj
        )
        hooks.mixer_inputs(layer, projected)
        if isinstance(mixer, GdnWeights):
            mixed = operators.gdn(projected, mixer, arena.conv[index], arena.ssm[index])
        else:
            mixed = operators.attention(projected, mixer, arena.kv[index])
        return mixed, residual


@dataclass(frozen=True)
class DraftStart:
    """Of one sequence: the token drawn last, which is to stand at `position`, the model's final
    hidden state [hidden] of the one before, its pages, a slot of its own, and how many drafts are
    wanted. REQUIRES: its pages have room for them."""

    token: int
    position: int
    hidden: Tensor
    pages: Sequence[int]
    slot: int
    sampling: SamplingParams
    count: int


@torch.inference_mode()
def draft_tokens(
    model: Qwen35Model, arena: Arena, starts: Sequence[DraftStart]
) -> list[tuple[int, ...]]:
    """Of each its drafts, in order."""
    found: list[list[int]] = [[] for _ in starts]
    hidden = {place: start.hidden for place, start in enumerate(starts)}
    for step in range(max((start.count for start in starts), default=0)):
        going = [place for place, start in enumerate(starts) if start.count > step]
        slices = [
            SequenceSlice(
                found[place][-1:] or [starts[place].token],
                starts[place].position + step,
                starts[place].pages,
                starts[place].slot,
                None,
            )
            for place in going
        ]
        before = torch.stack([hidden[place] for place in going])
        logits, after = model.draft_logits(before, Batch.pack(slices), arena)
        drawn = sample(
            logits,
            [starts[place].sampling for place in going],
            [starts[place].position + step + 1 for place in going],
        )
        for row, place in enumerate(going):
            found[place].append(drawn[row].token)
            hidden[place] = after[row]
    return [tuple(drafts) for drafts in found]
