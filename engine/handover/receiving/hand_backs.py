"""What a decode engine holds of a prompt, handed back to a prefill node: the next turn is asked
elsewhere.

A prefill node is asked for one token behind it, and pulls it for that. Owns those that wait to be
asked for. Takes no place and no memory here, and waits for nobody's answer. Thread rule: the engine
loop's. Invariant: at most AT_A_TIME rooms are for it, the quarantined among them.
"""

from collections import deque
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.engine.handover.answers import Answers
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.request import Request, Waiting
from tasuki.pycache.layout import PAGE_TOKENS

from .decode_rooms import DecodeRooms

AT_A_TIME = 16
"""Each is read from the arena and sent while answers go on."""
MOST_WAITING = 1024
"""Of a node that drains, all sessions leave at once."""


class HandBacks:
    def __init__(self, context: HandoverContext, answers: Answers, rooms: DecodeRooms) -> None:
        self._cache = context.cache
        self._answers = answers
        self._rooms = rooms
        self._waiting: deque[Request] = deque()
        """Maybe some that were aborted."""

    def submit(self, message: m.Submit, available: bool) -> None:
        """available: whether a prefill node is connected."""
        match = self._cache.match(message.prompt, message.salt, message.cursor)
        held = message.prompt[: match.usable_tokens + 1]
        request = self._answers.take_aside(replace(message, prompt=held), self._refusal(available))
        if request is None:
            return
        if match.usable_tokens < PAGE_TOKENS:
            # Not worth a room; and no error, which would show to whom it does not concern whether
            # some tokens of a page are cached.
            self._answers.finish_elsewhere(request, m.FinishReason.LENGTH)
            return
        self._waiting.append(request)
        self.advance()

    def _refusal(self, available: bool) -> m.RequestError | None:
        if not available:
            return _not_handed_back("no prefill node is connected")
        if len(self._waiting) >= MOST_WAITING:
            return _not_handed_back(f"{MOST_WAITING} wait to be handed back, as many as may")
        return None

    def advance(self) -> None:
        """Ask for as many as may be."""
        while self._waiting and self._rooms.count(m.Purpose.HAND_BACK) < AT_A_TIME:
            request = self._waiting.popleft()
            if isinstance(request.state, Waiting):
                match = self._cache.match(request.prompt, request.salt, request.cursor)
                self._rooms.ask(request, match)

    def lost(self, request: Request, message: m.HandoverFailed) -> None:
        """Its room was lost. REQUIRES: the request is Waiting."""
        if message.elsewhere:
            self._waiting.appendleft(request)
        else:
            self._answers.reject(request, _not_handed_back(message.reason))


def _not_handed_back(reason: str) -> m.RequestError:
    return m.RequestError(
        m.ErrorKind.NOT_HANDED_BACK,
        f"{reason}: ask the next turn elsewhere all the same, it is computed there",
    )
