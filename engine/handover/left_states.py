"""The states that a prefill engine leaves to others before it ends: decode nodes ask for them one
by one, fetch each and offer it to a prefill node that stays.

Owns what was given to whom until that says what became of it, and how much may be left. Knows
neither connections nor rooms. Thread rule: the engine loop's.
Invariants: a state is given once; at most ALONE are given at a time, and BESIDE while anything else
is in flight; bytes of those that are given or taken never exceed the bound; what a decode node that
asks was handed over alone is given to none but that one; nothing is given before begin() or
after end(), and what was given by then is counted as cut.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.handover.offered_states import (
    ALONE,
    BESIDE,
    LeavingReport,
    StateLine,
    bytes_to_leave,
    state_tokens,
)
from tasuki.engine.messages import Tokens
from tasuki.engine.request import Request

MOST = 1 << 14
_NAME_BYTES = 16


class SoleReceivers:
    """Which decode node alone was handed over what stands behind a beginning: whoever goes on there
    has more with that node than here.

    Owns names of the latest MOST beginnings. A hint: one that is wrong costs a message. Thread
    rule: the engine loop's. Invariant: a beginning of more prompts than one has no such node:
    others may begin there who have nothing with it.
    """

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, str | None] = OrderedDict()
        """None: of several prompts."""

    def note(self, salt: bytes, tokens: Tokens, peer: str) -> None:
        """A prompt with these tokens at its beginning, behind which its state stands, was handed
        over to the decode node `peer`."""
        name = _name(salt, tokens)
        self._peers[name] = None if name in self._peers else peer
        self._peers.move_to_end(name)
        if len(self._peers) > MOST:
            self._peers.popitem(last=False)

    def of(self, salt: bytes, tokens: Tokens) -> str | None:
        return self._peers.get(_name(salt, tokens))


def _name(salt: bytes, tokens: Tokens) -> bytes:
    key = blake2b(salt).digest()
    return blake2b(tokens.tobytes(), key=key, digest_size=_NAME_BYTES).digest()


_MOST_ASIDE = 32
"""Drawn, and kept for decode nodes that have not asked yet: each holds its tokens."""


@dataclass(frozen=True)
class _Given:
    tokens: int
    bytes: int


class LeftStates:
    def __init__(self, context: HandoverContext, receivers: SoleReceivers) -> None:
        self._emit = context.emit
        self._router = context.router
        self._receivers = receivers
        self._report = LeavingReport(context.emit)
        self._line = StateLine(context.cache, context.intake)
        self._left_bytes = bytes_to_leave(context.cache)
        self._numbers = count(1)
        self._given: dict[int, _Given] = {}
        self._aside: list[tuple[str | None, Request]] = []
        """With the decode node that each is for; None: for any, once there are bytes for it."""
        self._beside = 0
        """In flight when the line was formed."""
        self._over = False

    @property
    def begun(self) -> bool:
        """And not over."""
        return self._report.asked and not self._over

    def begin(self, query_id: int, beside: int) -> None:
        """beside: requests in flight."""
        first = not self._report.asked
        self._report.ask(query_id)
        if self._over:
            self._report.answer(self._untried)
        elif first:
            self._form_line(beside)
            self.end_if_over(beside)
            if self.begun:
                self._emit(m.LeavingBegun())

    def give(self, wanted: m.LeftWanted, beside: int) -> None:
        """Answer with the most valuable state that may go there now, or with none."""
        request = None
        if self.begun:
            self._look_again(beside)
            if len(self._given) < (BESIDE if beside else ALONE):
                request = self._next(wanted.peer, wanted.asking)
        if request is None:
            self.end_if_over(beside)
            self._emit(m.LeftState(wanted.query_id, None, not self.begun))
            return
        number, tokens = next(self._numbers), state_tokens(request)
        size = self._whole(request)
        self._left_bytes -= size
        self._given[number] = _Given(tokens, size)
        beginning = request.prompt[:tokens]
        known = self._receivers.of(request.salt, beginning) == wanted.peer
        given = m.GivenState(number, beginning, request.salt, known)
        self._emit(m.LeftState(wanted.query_id, given, False))

    def taken_over(self, message: m.LeftTakenOver, beside: int) -> None:
        """What became of it; of what is over already it says nothing new."""
        given = self._given.pop(message.number, None)
        if given is None:
            return
        taken = message.outcome is m.HeirOutcome.TAKEN
        # No more counts than it was given for, whatever its decode node says.
        size = min(message.bytes, given.bytes) if taken else 0
        self._left_bytes += given.bytes - size
        self._report.ended(message.outcome, given.tokens, size, message.heir if taken else "")
        self.end_if_over(beside)

    def end_if_over(self, beside: int) -> None:
        """Answer where nothing is in flight, here or at an heir, and nothing is left."""
        self._look_again(beside)
        if self.begun and not (beside or self._given or self._untried):
            self._over = True
            self._report.answer(0)

    def end(self) -> None:
        """No more; answer."""
        if self._over:
            return
        self._over = True
        for given in self._given.values():
            self._report.ended(m.HeirOutcome.CUT, given.tokens)
        self._given.clear()
        self._report.answer(self._untried)
        self._aside.clear()

    @property
    def _untried(self) -> int:
        return len(self._line) + len(self._aside)

    def _look_again(self, beside: int) -> None:
        """What has ended meanwhile left the states that matter most."""
        if self.begun and beside < self._beside and not (self._line and beside):
            self._form_line(beside)

    def _form_line(self, beside: int) -> None:
        self._beside = beside
        self._line.form()

    def _next(self, peer: str, asking: Collection[str]) -> Request | None:
        for each in tuple(self._aside):
            owner, request = each
            if owner == peer or owner not in asking:
                fits = self._fits(request)
                if fits is not None:
                    self._aside.remove(each)
                if fits and self._line.stands(request):
                    return request
        for _ in range(_MOST_ASIDE - len(self._aside)):
            drawn = self._line.draw()
            if drawn is None:
                break
            owner = self._receivers.of(drawn.salt, drawn.prompt[: state_tokens(drawn)])
            if owner != peer and owner in asking:
                self._aside.append((owner, drawn))
                continue
            fits = self._fits(drawn)
            if fits:
                return drawn
            if fits is None:
                self._aside.append((None, drawn))
        return None

    def _fits(self, request: Request) -> bool | None:
        """Whether there are bytes for it; None: not before others have said what they took. One
        that never will be is counted."""
        if self._whole(request) <= self._left_bytes:
            return True
        if self._given:
            return None
        self._report.ended(m.HeirOutcome.TOO_MUCH, state_tokens(request))
        return False

    def _whole(self, request: Request) -> int:
        return self._router.state_bytes(0, state_tokens(request))
