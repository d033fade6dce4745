"""Which states an engine leaves to heirs, and in which order: the line of those that are untried.

Owns the line and who was in it. Asks the cache; holds nothing of it. Thread rule: the engine
loop's. Invariants: a state is drawn once; what is drawn stands, and is the state behind all tokens
of the request but the last.
"""

import secrets
from collections import deque

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.intake import Intake
from tasuki.engine.request import Request
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import HeldState
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

MOST_STATES = 1024
"""Drawn in all."""
_LAST = 1_000_000
"""Of the priorities at an heir: behind those who are waited for."""


class StateLine:
    def __init__(self, cache: HybridPrefixCache, intake: Intake) -> None:
        self._cache = cache
        self._intake = intake
        self._name = f"left-to-heirs-{secrets.token_hex(8)}"
        """Of no caller's request."""
        self._line: deque[HeldState] = deque()
        self._drawn: set[tuple[int, int | None, int]] = set()

    def __len__(self) -> int:
        return len(self._line)

    def form(self) -> None:
        """Anew, of what stands now and was not drawn: the most valuable first."""
        states = self._cache.most_valuable(MOST_STATES)
        self._line = deque(
            state
            for state in states
            if state.boundary >= PAGE_TOKENS and state.name not in self._drawn
        )

    def draw(self) -> Request | None:
        """A request of one token behind the next state; None where there is no more."""
        while self._line and len(self._drawn) < MOST_STATES:
            state = self._line.popleft()
            self._drawn.add(state.name)
            request = self._request(state)
            if request is not None and self.stands(request):
                return request
        return None

    def stands(self, request: Request) -> bool:
        """Whether the state still does that the request is of."""
        match = self._cache.match(request.prompt, request.salt)
        return match.usable_tokens == state_tokens(request)

    def _request(self, state: HeldState) -> Request | None:
        """None where the state is gone, or no node would take a prompt of its length."""
        path = self._cache.path_to(state)
        if path is None:
            return None
        salt, tokens = path
        # A match ends before a prompt's last token, whatever that is.
        prompt = np.append(tokens, tokens[-1:])
        if self._intake.misfit(prompt, len(prompt)) is not None:
            return None
        return as_request(m.RequestId(f"{self._name}-{len(self._drawn)}"), prompt, salt)


def as_request(name: m.RequestId, prompt: m.Tokens, salt: bytes) -> Request:
    """Of one token behind the state that stands before the prompt's last token."""
    return Request(
        name,
        prompt,
        SamplingParams(max_new_tokens=1),
        salt,
        priority=_LAST,
        purpose=m.Purpose.INHERIT,
    )


def state_tokens(request: Request) -> int:
    """Behind so many of its tokens stands the state that it is of."""
    return len(request.prompt) - 1
