"""The states of prefill nodes that end which this decode engine passes on: each is fetched from its
holder and offered to a prefill node that stays, as a state of this engine's own would be.

Owns them from PassOn to its answer, but for what the fetch owns meanwhile. Thread rule: the
engine loop's. Invariants: each is answered once; at most AT_A_TIME are offered at a time; no memory
and no turn of an answer is waited for; what is here already is not fetched, and where this node was
handed over what goes on there nothing is done.
"""

import secrets
from collections import deque
from itertools import count

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.handover.base import HandoverContext
from tasuki.engine.handover.fetching.fetches import Fetches
from tasuki.engine.request import Request

from .state_line import as_request, state_tokens
from .state_offers import StateOffers

AT_A_TIME = 4
"""Beside answers, and whoever else pulls from here."""


class PassedOn(StateOffers):
    def __init__(self, context: HandoverContext, fetches: Fetches) -> None:
        super().__init__(context, AT_A_TIME)
        self._cache = context.cache
        self._intake = context.intake
        self._fetches = fetches
        self._name = f"passed-on-{secrets.token_hex(8)}"
        """Of no caller's request."""
        self._names = count(1)
        self._queries: dict[m.RequestId, int] = {}
        """By which whoever asked knows them."""
        self._line: deque[Request] = deque()
        """Here, and not offered yet."""

    def take(self, message: m.PassOn) -> None:
        """Fetch it, unless there is no need to; it is offered then."""
        state = message.state
        prompt = np.append(state.prompt, state.prompt[-1:])
        name = m.RequestId(f"{self._name}-{next(self._names)}")
        request = as_request(name, prompt, state.salt)
        self._queries[name] = message.query_id
        if self._intake.misfit(prompt, len(prompt)) is not None:
            self._ended(request, m.HeirOutcome.DECLINED, None, "")
            return
        match = self._cache.match(prompt, state.salt)
        tokens = len(state.prompt)
        if state.known and match.kv_tokens >= tokens:
            # What goes on behind it is here, and comes from here.
            self._ended(request, m.HeirOutcome.HELD, None, "")
        elif match.usable_tokens == tokens:
            self._line.append(request)
        else:
            self._fetches.fetch(request, message.holder, tokens, message.seconds)

    def fetched(self, request: Request) -> None:
        """Its fetch is over, however it ended."""
        self._line.append(request)

    def next(self, available: bool) -> Request | None:
        """A state to be asked of an heir now, as Heirs.next(). available: there may be one."""
        while self._line:
            request = self._line[0]
            if not (available and self._stands(request)):
                self._line.popleft()
                self._ended(request, m.HeirOutcome.LOST, None, "")
            elif len(self._rooms) < AT_A_TIME and self._has_room(request):
                return self._line.popleft()
            else:
                return None
        return None

    def _stands(self, request: Request) -> bool:
        match = self._cache.match(request.prompt, request.salt)
        return match.usable_tokens == state_tokens(request)

    def _once_more(self, request: Request) -> None:
        self._line.append(request)

    def _ended(
        self, request: Request, outcome: m.HeirOutcome, pulled: m.PullReport | None, heir: str
    ) -> None:
        size = 0 if pulled is None else pulled.bytes
        self._emit(m.StatePassedOn(self._queries.pop(request.id), outcome, size, heir))
