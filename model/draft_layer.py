"""The layer that drafts tokens (published as `mtp.*`): what it keeps of every token, and its guess.

Entry j, at position j >= 1, is the layer's key and value of token j and of the model's final hidden
state of token j - 1. So it depends on tokens 0 to j, as the model's own entries do, and may stand
in a page that prompts share; what is left over is the hidden state behind the last token, which is
carried in the slot. Entry 0 is of a hidden state of zeros: it is written and never attended to.

Owns nothing; computes with the plan of the forward that it follows. Its entries need no attention
and no feed-forward, so a forward costs a product with two rows of heads more.

Which tokens a draft may be, and the rows of the model's head that expect those.

A draft that is none of them only never holds: what is drawn is of all tokens. Tokenizers number the
tokens that they merge most often first, so a draft from the first ids costs a fraction of the head
and misses little. Special, stop and tool tokens have the last ids and are wanted as often.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tasuki.model.backends.base import EntryOperators, StepEntries
from tasuki.model.weights.layers import DraftWeights, ModelWeights, for_device
from tasuki.model.weights.matrix import Kind, Matrix
from tasuki.pycache.arena import Arena

from .config_json import ModelConfigError


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
