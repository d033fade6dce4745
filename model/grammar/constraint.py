"""Which tokens an answer may go on with, by its grammar and the tokens before.

A constraint's state is a function of the tokens that were appended, so that any node that has them
has the same one, within the bounds of a lexer. Owns the matcher; one thread at a time. Naive twin:
tests/model/grammar_twin.py, which tries every token.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .compiled_grammar import Matcher, is_spent
from .grammar import Grammar

Mask = NDArray[np.int32]
"""[-(-vocab // 32)]: bit t % 32 of word t // 32 says whether token t is allowed."""

_FEW = 64
"""Tokens that are allowed where the text has to be one, each the beginning of a longer one."""


_MOST_READ_AGAIN = 9000
"""Tokens of an answer that goes on with a fresh lexer: the engine's loop waits 40 ms at most."""
_LEAST_GAIN = 64
_LEAST_SHARE = 8
"""Tokens since the last fresh one: so many, and one of so many of the answer. Else another one
would be spent as soon, and reading again would cost more than the answer's length."""


def _never() -> Matcher | None:
    return None


Renew: TypeAlias = Callable[[], Matcher | None]
"""Returns a matcher with a fresh lexer, at its beginning; None: there is none."""


class _Phase(Enum):
    """START: of an answer that may begin with thinking. GAP: behind it, or at the start of an
    answer without it where nothing may come between."""

    START = "start"
    THINKING = "thinking"
    GAP = "gap"
    HOLDS = "holds"


class Constraint:
    def __init__(
        self,
        matcher: Matcher,
        grammar: Grammar,
        eos_ids: Iterable[int],
        tokens: Sequence[bytes],
        fresh: Renew = _never,
    ) -> None:
        """matcher: its own, at its beginning. eos_ids: tokens that end an answer. tokens: the
        vocabulary's. fresh: another one, once the lexer of the last one is spent; None: there is
        none. REQUIRES: all ids are of the vocabulary."""
        self._matcher = matcher
        self._fresh = fresh
        self._read: list[int] = []
        """What the matcher has consumed."""
        self._renewed_at = -_LEAST_GAIN
        self._grammar = grammar
        self._eos_ids = tuple(eos_ids)
        self._tokens = tokens
        self._words = -(-len(tokens) // 32)
        self._gap_passed = 0
        if grammar.closing is None:
            self._phase = _Phase.HOLDS
        elif grammar.opening is None:
            self._phase = _Phase.THINKING
        else:
            self._phase = _Phase.START

    def append(self, token: int) -> None:
        """The answer's next token."""
        match self._phase:
            case _Phase.THINKING:
                if token == self._grammar.closing:
                    self._phase = _Phase.GAP if self._grammar.gap else _Phase.HOLDS
            case _Phase.START if token == self._grammar.opening:
                self._phase = _Phase.THINKING
            case _Phase.GAP if token == self._grammar.gap[self._gap_passed]:
                self._gap_passed += 1
                if self._gap_passed == len(self._grammar.gap):
                    self._phase = _Phase.HOLDS
            case _:
                self._phase = _Phase.HOLDS
                self._read.append(token)
                self._matcher.consume_token(token)
                if self._matcher.is_error():
                    self._renew()

    @property
    def failed(self) -> bool:
        """The grammar says nothing any more: a bound was passed, or a token came that it did not
        allow."""
        return bool(self._matcher.is_error())

    def forced(self, most: int) -> list[int]:
        """At most so many tokens that the answer is likely to go on with, since those that are
        allowed leave no choice, as long ones as there are. Takes a mask each: to have the whole of
        a text that has to come may take a second, of a grammar of ten letters."""
        found: list[int] = []
        if self._phase is not _Phase.HOLDS:
            return found
        matcher = self._matcher
        while len(found) < most and not matcher.is_error():
            token = self._only_way(matcher)
            if token is None:
                break
            matcher = matcher.deep_copy() if matcher is self._matcher else matcher
            matcher.consume_token(token)
            found.append(token)
        return found

    def _only_way(self, matcher: Matcher) -> int | None:
        """The longest token that all others that are allowed begin with, or begin it."""
        mask = self._mask_of(matcher)
        if np.count_nonzero(mask) > _FEW:
            return None
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        allowed = sorted(np.flatnonzero(bits).tolist(), key=lambda token: len(self._tokens[token]))
        if not allowed or len(allowed) > _FEW or not self._tokens[allowed[0]]:
            return None
        found = None
        for token in allowed:
            text = self._tokens[token]
            if not all(
                text.startswith(other) or other.startswith(text)
                for other in (self._tokens[each] for each in allowed)
            ):
                break
            found = token
        return found

    def allowed(self, tokens: Sequence[int]) -> int:
        """How many of these, from the first on, may follow; all where it does not hold yet."""
        if self._phase is not _Phase.HOLDS:
            return len(tokens)
        found = int(self._matcher.validate_tokens(list(tokens)))
        if self._matcher.is_error() and self._renew():
            found = int(self._matcher.validate_tokens(list(tokens)))
        return found

    def mask(self) -> Mask | None:
        """Of the next token; None where every one is allowed. An end token alone is allowed where
        nothing else is, so that the answer ends as a prefix of the grammar's texts."""
        if self._phase is _Phase.THINKING:
            return None
        if self._phase is _Phase.GAP and self._gap_passed:
            mask = np.zeros(self._words, dtype=np.int32)
            _allow(mask, self._grammar.gap[self._gap_passed])
            return mask
        mask = self._mask_of(self._matcher)
        if self._matcher.is_error() and self._renew():
            mask = self._mask_of(self._matcher)
        if self._phase is _Phase.GAP:
            _allow(mask, self._grammar.gap[0])
        elif self._phase is _Phase.START and self._grammar.opening is not None:
            _allow(mask, self._grammar.opening)
        if self._matcher.is_error() or not mask.any():
            mask[:] = 0
            for token in self._eos_ids:
                _allow(mask, token)
        return mask

    def _renew(self) -> bool:
        """Go on with a fresh lexer where the old one is spent. Return whether it does."""
        count = len(self._read)
        gained = count - self._renewed_at
        least = max(_LEAST_GAIN, count // _LEAST_SHARE)
        if count > _MOST_READ_AGAIN or gained < least or not is_spent(self._matcher):
            return False
        matcher = self._fresh()
        if matcher is None:
            return False
        for token in self._read:
            matcher.consume_token(token)
        self._renewed_at = count
        self._matcher = matcher
        return not matcher.is_error()

    def _mask_of(self, matcher: Matcher) -> Mask:
        mask = np.zeros(self._words, dtype=np.int32)
        matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        return mask


def _allow(mask: Mask, token: int) -> None:
    mask.view(np.uint32)[token // 32] |= np.uint32(1 << token % 32)


def only(token: int, vocab: int) -> Mask:
    """Return the mask of that token alone. vocab: tokens of the vocabulary."""
    mask = np.zeros(-(-vocab // 32), dtype=np.int32)
    _allow(mask, token)
    return mask


def allows(mask: Mask, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)


def every(vocab: int) -> Mask:
    """Return the mask of all tokens of the vocabulary."""
    mask = np.full(-(-vocab // 32), -1, dtype=np.int32)
    if vocab % 32:
        mask.view(np.uint32)[-1] = (1 << vocab % 32) - 1
    return mask


def rule_out(mask: Mask, tokens: Collection[int], kept: Mask | None = None) -> Mask:
    """Return the mask without these tokens, and without those that are not kept; as it was where
    that would leave none. kept: None keeps all."""
    if not tokens and kept is None:
        return mask
    without = mask.copy() if kept is None else mask & kept
    for token in tokens:
        without.view(np.uint32)[token // 32] &= ~np.uint32(1 << token % 32)
    return without if without.any() else mask


def keep_only(mask: Mask, tokens: Iterable[int]) -> Mask:
    """What of the mask is among these tokens; all of it where none is."""
    kept = np.zeros_like(mask)
    for token in tokens:
        _allow(kept, token)
    kept &= mask
    return kept if kept.any() else mask
