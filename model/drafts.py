"""Drafts made by a model: the tokens allowed, and the loop of a draft layer.

DraftHead: the tokens allowed as drafts, and their rows of the model's head. Tokens are sampled from
the whole head, so any other token costs only a rejected draft. Tokenizers give the most frequent
merges the lowest ids. So a draft from the first ids costs a fraction of the head and misses little.
Special, stop and tool tokens have the last ids and are needed as often.

draft_tokens() drafts the tokens after the last sampled token, one after the other. It writes the
entries at the drafts' positions; the forwards of those tokens overwrite them. A draft is sampled
with the temperature and the noise of its position, as the model will sample there. So a likely
token is a likely draft. A BlockModel drafts all tokens in one pass instead.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import sample
from tasuki.model.weights.layers import for_device
from tasuki.model.weights.matrix import Kind, Matrix
from tasuki.pycache.arena import Arena

from .config_json import ModelConfigError
from .forward import Batch, SequenceSlice
from .protocol import Model


class NoDraftLayer(Exception):
    """Error: an arena has a draft layer, but this model has no weights to compute it."""


FILE = "draft_vocab.json"
FIRST_IDS = 32_768


def draft_ids(folder: Path, vocab: int, eos_ids: Collection[int]) -> Tensor | None:
    """Return the token ids allowed as drafts, ascending, [n] int64; None: the whole vocabulary. The
    folder's draft_vocab.json lists them. Without the file they are the first 32768 ids, the ids
    added by the tokenizer, and the end tokens. Raises ModelConfigError."""
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
        raise ModelConfigError(f"{path}: cannot be read ({error}); fix it or remove it") from error
    whole = isinstance(found, list) and all(type(token) is int for token in found)
    if not whole or not found or not 0 <= min(found) <= max(found) < vocab:
        raise ModelConfigError(
            f"{path}: is no list of token ids from 0 to {vocab - 1}; fix it or remove it"
        )
    return set(found)


def _added(path: Path) -> set[int]:
    """Return the token ids added by the tokenizer file; an empty set if it cannot be read."""
    try:
        added = json.loads(path.read_text(encoding="utf-8")).get("added_tokens") or []
        return {int(token["id"]) for token in added}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return set()


@dataclass(frozen=True)
class DraftHead:
    """The tokens allowed as drafts. ids [n] int64: their ids in a vocabulary of `vocab` tokens;
    head [n, hidden]: their rows of the model's head, a copy."""

    ids: Tensor
    head: Matrix
    vocab: int

    @staticmethod
    def of(head: Matrix, ids: Tensor | None) -> "DraftHead | None":
        """Return the draft head for the token ids `ids`. head: the model's. None if any token may
        be a draft, or if the head is quantised (its rows share scales)."""
        if ids is None or head.kinds != {Kind.PLAIN}:
            return None
        rows = head.plain.index_select(0, ids.to(head.plain.device))
        return DraftHead(ids.to(rows.device), Matrix.of(for_device(rows)), head.shape[0])

    def spread(self, logits: Tensor) -> Tensor:
        """Return logits [T, vocab] float32 from logits [T, n] of the tokens allowed as drafts. All
        other tokens get -inf."""
        found = logits.new_full((len(logits), self.vocab), -torch.inf, dtype=torch.float32)
        found[:, self.ids] = logits.float()
        return found


@dataclass(frozen=True)
class DraftStart:
    """Start of one sequence's drafts. token: the token sampled last, at `position`; hidden
    [hidden]: the model's final hidden state of the token before it. slot: a slot of its own; count:
    number of drafts wanted. rope_delta: as in SequenceSlice. REQUIRES: its pages have space
    for the drafts."""

    token: int
    position: int
    hidden: Tensor
    pages: Sequence[int]
    slot: int
    sampling: SamplingParams
    count: int
    rope_delta: int = 0


@runtime_checkable
class BlockModel(Protocol):
    """A model with a block drafter (drafter/model.py)."""

    def draft_blocks(self, arena: Arena, starts: Sequence[DraftStart]) -> list[tuple[int, ...]]:
        """Draft each start's tokens in one pass, and return them in order. Nothing is written.
        REQUIRES: the pages of all tokens before a start are written; a count is at least 1."""


@torch.inference_mode()
def draft_tokens(model: Model, arena: Arena, starts: Sequence[DraftStart]) -> list[tuple[int, ...]]:
    """Draft tokens with the model's block drafter or draft layer, and return each start's drafts in
    order."""
    if isinstance(model, BlockModel):
        return model.draft_blocks(arena, starts)
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
                rope_delta=starts[place].rope_delta,
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
