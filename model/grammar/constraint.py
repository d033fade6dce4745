"""The tokens allowed next in an answer, given its grammar and the answer's tokens so far.

A constraint's state is a function of the appended tokens. So any node with the same tokens has the
same state, within the bounds of a lexer. Owns the matcher (llguidance's state of the answer); one
thread at a time. Reference implementation: tests/model/grammar_twin.py, it tries every token.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from .compiled_grammar import Matcher, is_spent
from .grammar import Grammar

Mask = NDArray[np.int32]
"""Bit mask of allowed tokens, int32 [ceil(vocab / 32)]. Bit t % 32 of word t // 32 is 1 if token t
is allowed."""

_FEW = 64
"""Largest number of allowed tokens for a search of forced text. If the text is forced, each allowed
token is a prefix of a longer one, so they are few."""


_MOST_READ_AGAIN = 9000
"""Length in tokens of the longest answer allowed to continue with a fresh lexer. Reading such an
answer again blocks the engine's loop for 40 ms at most."""
_LEAST_GAIN = 64
_LEAST_SHARE = 8
"""Divisor of the answer's length. Since its last fresh lexer an answer must have gained this share
of its tokens, and at least _LEAST_GAIN tokens, to get another. Otherwise repeated reading would
cost more than the answer's length."""


def _never() -> Matcher | None:
    return None


Renew: TypeAlias = Callable[[], Matcher | None]
"""Function returning a matcher with a fresh lexer, at an answer's beginning; None without one."""


class _Phase(Enum):
    """Phase of an answer. START: it may begin with thinking. THINKING: inside the thought. GAP: the
    thinking has ended, and the gap's tokens may follow. HOLDS: the grammar applies."""

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
        """matcher: a matcher of its own, at the beginning of an answer. eos_ids: ids of the tokens
        ending an answer. tokens: bytes of each token of the vocabulary. fresh: returns a matcher
        with a fresh lexer once the last lexer is spent (it takes no more states); None if there is
        none. REQUIRES: all ids are in the vocabulary."""
        self._matcher = matcher
        self._fresh = fresh
        self._read: list[int] = []
        """The tokens consumed by the matcher so far."""
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
        """Append the answer's next token."""
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
        """Return true if the matcher has failed, because a bound was passed or a disallowed token
        was appended. From then on only end tokens are allowed."""
        return bool(self._matcher.is_error())

    def forced(self, most: int) -> list[int]:
        """Return up to `most` tokens of the text forced by the grammar; none before the grammar
        applies. The tokens are the longest possible. Each token needs one mask. For a grammar of
        ten characters, its whole forced text may take a second."""
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
        """Return the longest token t such that every allowed token is a prefix or a continuation of
        t; None without such a token."""
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
        """Return the length of the longest start of `tokens` allowed by the grammar. If the grammar
        does not apply yet, return the whole length."""
        if self._phase is not _Phase.HOLDS:
            return len(tokens)
        found = int(self._matcher.validate_tokens(list(tokens)))
        if self._matcher.is_error() and self._renew():
            found = int(self._matcher.validate_tokens(list(tokens)))
        return found

    def mask(self) -> Mask | None:
        """Return the mask of tokens allowed next; None if every token is allowed. If no token fits
        the grammar, the mask has only the end tokens. The answer then ends as a prefix of a text of
        the grammar."""
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
        """Replace the matcher by one with a fresh lexer if its lexer is spent, and read the answer
        again. Return true if the constraint can continue."""
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
    """Return a mask allowing only this token. vocab: number of tokens in the vocabulary."""
    mask = np.zeros(-(-vocab // 32), dtype=np.int32)
    _allow(mask, token)
    return mask


def allows(mask: Mask, token: int) -> bool:
    return bool(mask[token // 32] >> (token % 32) & 1)


def every(vocab: int) -> Mask:
    """Return a mask allowing all `vocab` tokens of the vocabulary."""
    mask = np.full(-(-vocab // 32), -1, dtype=np.int32)
    if vocab % 32:
        mask.view(np.uint32)[-1] = (1 << vocab % 32) - 1
    return mask


def rule_out(mask: Mask, tokens: Collection[int], kept: Mask | None = None) -> Mask:
    """Remove these tokens, and all tokens outside `kept`, from the mask. If no token would remain,
    return the mask unchanged. kept: tokens to keep; None: all."""
    if not tokens and kept is None:
        return mask
    without = mask.copy() if kept is None else mask & kept
    for token in tokens:
        without.view(np.uint32)[token // 32] &= ~np.uint32(1 << token % 32)
    return without if without.any() else mask


def keep_only(mask: Mask, tokens: Iterable[int]) -> Mask:
    """Return the mask limited to these tokens; the whole mask if it has none of them."""
    kept = np.zeros_like(mask)
    for token in tokens:
        _allow(kept, token)
    kept &= mask
    return kept if kept.any() else mask
