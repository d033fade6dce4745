"""Adjustments of a request's logits before a token is sampled from them.

Everything is a function of (the request's fields, its prompt, its output so far). So any node with
the same three samples the same token. The order is vLLM's:

1. A token forced by the thinking budget is the only one. Otherwise four kinds of tokens are ruled
   out, with a logit of -inf. The first are tokens outside the grammar and allowed_token_ids. The
   second complete one of bad_words in the output. The third would end the answer while the output
   has fewer than min_tokens. The fourth are inside a character at the end of the thinking budget.
2. logit_bias is added.
3. repetition_penalty applies to each token of the prompt or the output: a logit above 0 is divided
   by it, any other is multiplied. frequency_penalty times the token's count in the output is
   subtracted, then presence_penalty if the count is not 0.
4. min_p: a token less likely, at the temperature, than min_p times the likeliest is ruled out.

If the last three of the four kinds would leave no token, they rule out none. If the grammar has
none of allowed_token_ids, the grammar's tokens are allowed.

All arithmetic is float32, an operation at a time, so CPU and GPU agree in every bit; the bound of
min_p is float64. It is sparse: only tokens named in a row's parameters or seen before in its text
are read and written. Reference implementation: tests/kernels/adjustments_twin.py.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.model.grammar.constraint import Constraint, Mask, every, keep_only, only, rule_out
from tasuki.model.grammar.vocabulary import UnfinishedTokens
from tasuki.pycache.keys import PromptTokens

from .budgeted_thought import BudgetedThought
from .params import SamplingParams

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class TokensBefore:
    """Earlier tokens of a request, as its adjustments need them, int32. prompt: ids of the prompt,
    each once, ascending. output: all tokens of the answer so far, in order. An array is empty if no
    adjustment depends on it. begins: position of the answer's first token."""

    prompt: Ints
    output: Ints
    begins: int = 0

    @staticmethod
    def of(params: SamplingParams, prompt: PromptTokens, output: Sequence[int]) -> "TokensBefore":
        repeated = params.repetition_penalty != 1
        return TokensBefore(
            np.unique(prompt).astype(np.int32) if repeated else _NONE,
            np.array(output, dtype=np.int32) if params.follows_output else _NONE,
            len(prompt),
        )


_NONE: Ints = np.empty(0, dtype=np.int32)


class LogitAdjuster:
    """One sequence's logit adjustments, on the host. It counts the tokens seen, so its memory grows
    with the distinct tokens of prompt and output. One thread at a time."""

    def __init__(
        self,
        params: SamplingParams,
        ends: frozenset[int],
        vocab: int,
        before: TokensBefore,
        constraint: Constraint | None = None,
        unfinished: UnfinishedTokens | None = None,
    ) -> None:
        """ends: ids of the tokens ending the answer (reference.stop_ids). vocab: number of tokens
        in the vocabulary. before: earlier tokens. constraint: the grammar's constraint after
        `before`. unfinished: the vocabulary's tokens ending inside a UTF-8 character, for a
        thinking budget; None: the tokens' texts are not known. REQUIRES: the params adjust logits;
        their named_tokens and the earlier tokens are in the vocabulary."""
        self.params = params
        self._vocab = vocab
        self._ends = frozenset(token for token in ends if 0 <= token < vocab)
        self._allowed = frozenset(params.allowed_token_ids)
        self._constraint = constraint
        self._output = before.output.tolist()
        self._thought = (
            None
            if params.thinking is None
            else BudgetedThought(params.thinking, unfinished, self._output)
        )
        self._counts_tokens = bool(
            params.presence_penalty or params.frequency_penalty or params.repetition_penalty != 1
        )
        self._places: dict[int, int] = {}
        self._ids = np.empty(64, dtype=np.int64)
        self._counts = np.empty(64, dtype=np.float32)
        for token in before.prompt.tolist():
            self._count(token, 0)
        if self._counts_tokens:
            for token in self._output:
                self._count(token, 1)

    def append(self, token: int) -> None:
        """Append the sequence's next token. Do nothing if no adjustment depends on earlier
        tokens."""
        if not self.params.follows_output:
            return
        self._output.append(token)
        if self._constraint is not None:
            self._constraint.append(token)
        if self._thought is not None:
            self._thought.append(token)
        if self._counts_tokens:
            self._count(token, 1)

    def _count(self, token: int, times: int) -> None:
        place = self._places.get(token)
        if place is None:
            place = self._places[token] = len(self._places)
            if place == len(self._ids):
                self._ids = np.concatenate([self._ids, self._ids])
                self._counts = np.concatenate([self._counts, self._counts])
            self._ids[place], self._counts[place] = token, 0
        self._counts[place] += times

    @property
    def seen(self) -> NDArray[np.int64]:
        """Return the ids of the tokens with penalties: those seen in the prompt or the output."""
        return self._ids[: len(self._places)]

    @property
    def counts(self) -> NDArray[np.float32]:
        """Return how often each token of `seen` is in the output."""
        return self._counts[: len(self._places)]

    @property
    def is_idle(self) -> bool:
        """Return true if the next token's logits are not adjusted."""
        thought = self._thought
        if thought is None or self.params.adjusts_every_draw:
            return False
        return thought.forced is None and thought.mask is None

    def mask(self) -> Mask | None:
        """Return the mask of tokens allowed next, if there is a grammar or a thought must end; else
        None."""
        thought = self._thought
        if thought is not None and thought.forced is not None:
            return only(thought.forced, self._vocab)
        finished = None if thought is None else thought.mask
        mask = None if self._constraint is None else self._constraint.mask()
        if mask is None:
            if finished is None:
                return None
            mask = every(self._vocab)
        if self._allowed:
            mask = keep_only(mask, self._allowed)
        return rule_out(mask, self._named_out, finished)

    @property
    def ruled_out(self) -> list[int]:
        """Return the ids of the tokens excluded next by bad_words and min_tokens, ascending. Use it
        for a row without a mask."""
        tokens = self._named_out
        left_none = self._allowed <= tokens if self._allowed else len(tokens) == self._vocab
        return [] if left_none else sorted(tokens)

    @property
    def _named_out(self) -> set[int]:
        tokens = {word[-1] for word in self.params.bad_words if self._ends_in(word[:-1])}
        if len(self._output) < self.params.min_tokens:
            tokens |= self._ends
        return tokens

    def _ends_in(self, tokens: tuple[int, ...]) -> bool:
        return not tokens or tuple(self._output[-len(tokens) :]) == tokens

    @property
    def reach(self) -> float:
        """Return the limit that min_p sets: the (negative) distance of a logit from the highest
        logit, below which a token is excluded. Without min_p it is -inf."""
        params = self.params
        if not (params.min_p and params.temperature):
            return -math.inf
        return params.temperature * math.log(params.min_p)


@dataclass(frozen=True)
class AdjustedRows:
    """Logit adjustments of a batch of n rows, as flat lists. A list `x` of tokens has a list
    `x_rows` with the row of every entry. Rows and tokens are int64, values float32. allowing: rows
    with allowed_token_ids. reaches [n] float64: limit of min_p per row; [0] if no row has a min_p.
    masks [n, bytes of a mask] uint8: allowed tokens, if a row has a grammar; else [0, 0]."""

    masks: Tensor
    allowing: Tensor
    allowed_rows: Tensor
    allowed: Tensor
    ruled_out_rows: Tensor
    ruled_out: Tensor
    bias_rows: Tensor
    biased: Tensor
    biases: Tensor
    seen_rows: Tensor
    seen: Tensor
    counts: Tensor
    repetition: Tensor
    frequency: Tensor
    presence: Tensor
    reaches: Tensor

    @staticmethod
    def of(adjusters: Sequence[LogitAdjuster]) -> "AdjustedRows":
        """Collect the adjustments of a batch on the CPU, and return them. Row i gets those of
        adjusters[i]."""
        params = [item.params for item in adjusters]
        masks = [item.mask() for item in adjusters]
        free = [mask is None for mask in masks]
        allowed = [item.allowed_token_ids if free[row] else () for row, item in enumerate(params)]
        ruled_out = [item.ruled_out if free[row] else [] for row, item in enumerate(adjusters)]
        biased = [[token for token, _ in item.logit_bias] for item in params]
        biases = [[bias for _, bias in item.logit_bias] for item in params]
        seen = [item.seen for item in adjusters]
        seen_rows = _rows(seen)

        def of_seen(penalties: list[float]) -> Tensor:
            return torch.tensor(penalties, dtype=torch.float32)[seen_rows]

        return AdjustedRows(
            masks=_masks(masks),
            allowing=torch.tensor(
                [row for row, ids in enumerate(allowed) if ids], dtype=torch.int64
            ),
            allowed_rows=_rows(allowed),
            allowed=_flat(allowed, np.int64),
            ruled_out_rows=_rows(ruled_out),
            ruled_out=_flat(ruled_out, np.int64),
            bias_rows=_rows(biased),
            biased=_flat(biased, np.int64),
            biases=_flat(biases, np.float32),
            seen_rows=seen_rows,
            seen=_flat(seen, np.int64),
            counts=_flat([item.counts for item in adjusters], np.float32),
            repetition=of_seen([item.repetition_penalty for item in params]),
            frequency=of_seen([item.frequency_penalty for item in params]),
            presence=of_seen([item.presence_penalty for item in params]),
            reaches=_reaches(adjusters),
        )

    @property
    def masks_alone(self) -> bool:
        """Return true if masks of grammars are the only adjustments. It reads only tensor lengths,
        so it never waits."""
        others = (self.allowing, self.ruled_out, self.biased, self.seen, self.reaches)
        return len(self.masks) > 0 and not any(len(other) for other in others)

    def to(self, device: torch.device) -> "AdjustedRows":
        """Return a copy of the adjustments on the device, made in the order of the current stream,
        without a wait. On the CPU return the adjustments themselves."""
        if device.type == "cpu":
            return self
        copies = {}
        for field in fields(self):
            host: Tensor = getattr(self, field.name)
            pinned = host.pin_memory() if host.numel() else host
            copies[field.name] = pinned.to(device, non_blocking=True)
        return AdjustedRows(**copies)


def _masks(masks: Sequence[Mask | None]) -> Tensor:
    """Pack the masks of all rows into [n, bytes] uint8. Bit t % 8 of byte t // 8 belongs to token
    t. A row without a mask allows all. Without any mask the shape is [0, 0]."""
    words = next((len(mask) for mask in masks if mask is not None), 0)
    if not words:
        return torch.empty(0, 0, dtype=torch.uint8)
    rows = np.full((len(masks), words), -1, dtype="<i4")
    for row, mask in enumerate(masks):
        if mask is not None:
            rows[row] = mask
    return torch.from_numpy(rows.view(np.uint8))


def _reaches(adjusters: Sequence[LogitAdjuster]) -> Tensor:
    reaches = [item.reach for item in adjusters]
    if all(math.isinf(reach) for reach in reaches):
        reaches = []
    return torch.tensor(reaches, dtype=torch.float64)


def _rows(lists: Sequence[Sequence[int] | NDArray[np.int64]]) -> Tensor:
    """Return the row number of every entry of the lists, joined in order: int64."""
    lengths = [len(items) for items in lists]
    return torch.from_numpy(np.repeat(np.arange(len(lists), dtype=np.int64), lengths))


def _flat(lists: Sequence[Sequence[float] | NDArray[Any]], dtype: type) -> Tensor:
    return torch.from_numpy(np.concatenate([np.asarray(items, dtype=dtype) for items in lists]))


def adjusted(logits: Tensor, rows: AdjustedRows) -> Tensor:
    """Return the adjusted logits as a copy, float32 [n, vocab]. logits: [n, vocab] of any float
    type, on the device of `rows`. It only launches kernels; the host never waits."""
    scores = logits.float()
    if scores is logits:
        scores = logits.clone()
    if len(rows.masks):
        scores.masked_fill_(_masked_out(rows.masks, scores.shape[1]), -torch.inf)
    # A GPU would launch a kernel for empty lists too.
    if len(rows.allowing):
        kept = scores[rows.allowed_rows, rows.allowed]
        scores[rows.allowing] = -torch.inf
        scores[rows.allowed_rows, rows.allowed] = kept
    if len(rows.ruled_out):
        scores[rows.ruled_out_rows, rows.ruled_out] = -torch.inf
    # A list names each token of a row once, so values may be read and written back.
    if len(rows.biased):
        scores[rows.bias_rows, rows.biased] = scores[rows.bias_rows, rows.biased] + rows.biases
    if len(rows.seen):
        scores[rows.seen_rows, rows.seen] = _penalized(scores[rows.seen_rows, rows.seen], rows)
    if len(rows.reaches):
        lowest = scores.amax(dim=-1, keepdim=True).double() + rows.reaches[:, None]
        scores.masked_fill_(scores < _rounded_up(lowest), -torch.inf)
    return scores


def _masked_out(masks: Tensor, vocab: int) -> Tensor:
    """Return the tokens excluded by masks, [n, vocab] bool. It takes one byte per logit
    (engine/assembly/memory_plan.py)."""
    bits = masks[:, :, None] >> torch.arange(8, dtype=torch.uint8, device=masks.device)
    bits = bits.bitwise_and_(1).bitwise_xor_(1)
    return bits.view(torch.bool).view(len(masks), -1)[:, :vocab]


def _penalized(seen: Tensor, rows: AdjustedRows) -> Tensor:
    seen = torch.where(seen > 0, seen / rows.repetition, seen * rows.repetition)
    seen = seen - rows.frequency * rows.counts
    return seen - torch.where(rows.counts > 0, rows.presence, 0.0)


def _rounded_up(bounds: Tensor) -> Tensor:
    """Return the least float32 not below each float64 bound. Any float32 is below the bound exactly
    if it is below the result."""
    nearest = bounds.float()
    higher = torch.nextafter(nearest, torch.full_like(nearest, torch.inf))
    return torch.where(nearest.double() < bounds, higher, nearest)
