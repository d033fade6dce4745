"""The states left to other nodes by an ending engine: selection, order, concurrency and reports.

A decode engine offers its own states to prefill nodes (offered_states.py). A prefill engine is
asked by decode nodes for its states, one at a time. They fetch each state and offer it to a staying
prefill node. Knows neither connections nor transfers. Thread rule: the engine loop's.
"""

import secrets
from collections import Counter, OrderedDict, deque
from collections.abc import Collection
from dataclasses import dataclass
from hashlib import blake2b
from itertools import count

from tasuki.engine import messages as m
from tasuki.engine.request import Request
from tasuki.engine.roles.base import HandoverContext
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import HeldState
from tasuki.pycache.keys import Keys, PromptTokens, first_keys, repeat_last
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache

ALONE = 16
"""States left at a time. Together they hold at most the tokens of one drain target's pull window,
for a drain target of this node's size. More would be declined if all went to that drain target."""
BESIDE = 2
"""States left at a time while any request is in flight, because answers come first."""
MOST_STATES = 1024
"""Most states selected in all."""
_PART_OF_ARENA = 4
"""Drain targets are sent at most a quarter of this engine's capacity, because the sent states
displace the drain targets' own."""
_LAST = 1_000_000
"""Priority at a drain target: after all requests with a waiting client."""


def as_request(name: m.RequestId, keys: Keys, salt: bytes) -> Request:
    """Return a request of one token after the state stored before the prompt's last token.
    It is only named to other nodes: they compare its keys."""
    return Request(
        name,
        PromptTokens(keys),
        SamplingParams(max_new_tokens=1),
        salt,
        priority=_LAST,
        purpose=m.Purpose.INHERIT,
    )


def state_tokens(request: Request) -> int:
    """Return the number of the request's tokens before its state."""
    return len(request.prompt) - 1


def stands(cache: HybridPrefixCache, request: Request) -> bool:
    """Return True if the request's state is still in the cache."""
    match = cache.match(request.keys, request.salt)
    return match.usable_tokens == state_tokens(request)


class Leaving:
    """An engine's leaving, from the first query to its answer: the line of untried states, the
    remaining byte budget, and each state's outcome.

    Asks the cache; holds nothing of it. Invariants: a state is selected once. A selected state is
    in the cache, after all tokens of the request except the last. Nothing is selected before
    begin() or after finish(). Every query is answered once, with the counts until then.
    """

    def __init__(self, context: HandoverContext) -> None:
        self._cache = context.cache
        self._intake = context.intake
        self._emit = context.emit
        self._router = context.router
        arena = context.cache.arena
        self.left_bytes = arena.slabs * arena.layout.slab_bytes // _PART_OF_ARENA
        self._name = f"left-to-heirs-{secrets.token_hex(8)}"
        """Name prefix of these requests; no caller's request has it."""
        self._line: deque[HeldState] = deque()
        self._drawn: set[tuple[int, int | None, int]] = set()
        self._beside = 0
        """Number of requests in flight when the line was formed."""
        self._asked: list[int] = []
        self._over = False
        self._outcomes: Counter[m.DrainTargetOutcome] = Counter()
        self._tokens = self._bytes = 0

    def __len__(self) -> int:
        """Return the number of states in the line."""
        return len(self._line)

    @property
    def begun(self) -> bool:
        """True if it has begun and is not over."""
        return bool(self._asked) and not self._over

    @property
    def over(self) -> bool:
        return self._over

    def begin(self, query_id: int, beside: int) -> bool:
        """Accept a query. Return True if it is the first. beside: requests in flight."""
        first = not (self._asked or self._over)
        self._asked.append(query_id)
        if self._over:
            self._answer(len(self._line))
        elif first:
            self._form_line(beside)
        return first

    def finish(self, aside: int = 0) -> None:
        """Select no more states, and answer all queries. aside: states selected and never
        offered."""
        self._over = True
        self._answer(len(self._line) + aside)

    def _answer(self, untried: int) -> None:
        asked, self._asked = self._asked, []
        states = dict(self._outcomes)
        for query_id in asked:
            self._emit(m.LeftToDrainTargets(query_id, states, self._tokens, self._bytes, untried))

    def ended(
        self, outcome: m.DrainTargetOutcome, tokens: int, size: int = 0, drain_target: str = ""
    ) -> None:
        """Report the outcome of a state of `tokens` tokens. size: bytes pulled by the drain
        target."""
        self._outcomes[outcome] += 1
        if outcome is m.DrainTargetOutcome.TAKEN:
            self._tokens += tokens
            self._bytes += size
        self._emit(m.StateLeft(outcome, tokens, size, drain_target))

    def look_again(self, beside: int) -> None:
        """Form the line again if requests have ended since: their states are the most valuable."""
        if self.begun and beside < self._beside and not (self._line and beside):
            self._form_line(beside)

    def _form_line(self, beside: int) -> None:
        """Line up the cached states not selected yet, the most valuable first."""
        self._beside = beside
        states = self._cache.most_valuable(MOST_STATES)
        self._line = deque(
            state
            for state in states
            if state.boundary >= PAGE_TOKENS and state.name not in self._drawn
        )

    def draw(self) -> Request | None:
        """Return a request of one token after the next state; None if the line is empty."""
        while self._line and len(self._drawn) < MOST_STATES:
            state = self._line.popleft()
            self._drawn.add(state.name)
            request = self._request(state)
            if request is not None and stands(self._cache, request):
                return request
        return None

    def whole_bytes(self, request: Request) -> int:
        """Return the bytes of the state with all its pages."""
        return self._router.state_bytes(0, state_tokens(request))

    def _request(self, state: HeldState) -> Request | None:
        """Return a request for the state; None if the state is gone, or no node would accept its
        length."""
        path = self._cache.path_to(state)
        if path is None:
            return None
        salt, tokens = path
        # A match ends before a prompt's last token, so any last token will do.
        prompt = repeat_last(tokens)
        if self._intake.misfit(prompt, len(prompt)) is not None:
            return None
        return as_request(m.RequestId(f"{self._name}-{len(self._drawn)}"), prompt, salt)


MOST = 1 << 14
_NAME_BYTES = 16


class SoleReceivers:
    """The prefixes handed over to exactly one decode node. Their sessions continue there, so that
    node holds more of them than this one.

    Owns names of the latest MOST prefixes. A hint: a wrong one costs a message. Thread rule: the
    engine loop's. Invariant: a prefix of several prompts has no such node, because others may
    continue it elsewhere.
    """

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, str | None] = OrderedDict()
        """Decode node by prefix name; None: a prefix of several prompts."""

    def note(self, salt: bytes, tokens: Keys, peer: str) -> None:
        """Record a prompt handed over to the decode node `peer`. tokens: the prompt's first tokens,
        before its state."""
        name = _name(salt, tokens)
        self._peers[name] = None if name in self._peers else peer
        self._peers.move_to_end(name)
        if len(self._peers) > MOST:
            self._peers.popitem(last=False)

    def of(self, salt: bytes, tokens: Keys) -> str | None:
        return self._peers.get(_name(salt, tokens))


def _name(salt: bytes, tokens: Keys) -> bytes:
    key = blake2b(salt).digest()
    return blake2b(tokens.tobytes(), key=key, digest_size=_NAME_BYTES).digest()


_MOST_ASIDE = 32
"""Most states selected and kept aside for decode nodes before they ask: each holds its tokens."""


@dataclass(frozen=True)
class _Given:
    tokens: int
    bytes: int


class LeftStates:
    """The states given by a prefill engine to decode nodes on request.

    Owns the record of each given state until its decode node reports the outcome. Invariants: a
    state is given once. At most ALONE are given at a time, and BESIDE while any request is in
    flight. The bytes of given or taken states never exceed the bound. A state handed over to a
    single asking decode node is given to that node only. A state still given at end() is counted as
    cut.
    """

    def __init__(self, context: HandoverContext, receivers: SoleReceivers) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._receivers = receivers
        self._leaving = Leaving(context)
        self._numbers = count(1)
        self._given: dict[int, _Given] = {}
        self._aside: list[tuple[str | None, Request]] = []
        """States kept aside, each with its decode node. None: for any node, once the byte budget
        suffices."""

    def begin(self, query_id: int, beside: int) -> None:
        """Accept a query to leave states. beside: requests in flight."""
        if self._leaving.begin(query_id, beside):
            self.end_if_over(beside)
            if self._leaving.begun:
                self._emit(m.LeavingBegun())

    def give(self, wanted: m.LeftWanted, beside: int) -> None:
        """Answer with the most valuable state allowed for this node now, or with none."""
        leaving, request = self._leaving, None
        if leaving.begun:
            leaving.look_again(beside)
            if len(self._given) < (BESIDE if beside else ALONE):
                request = self._next(wanted.peer, wanted.asking)
        if request is None:
            self.end_if_over(beside)
            self._emit(m.LeftState(wanted.query_id, None, not leaving.begun))
            return
        number, tokens = next(self._numbers), state_tokens(request)
        size = leaving.whole_bytes(request)
        leaving.left_bytes -= size
        self._given[number] = _Given(tokens, size)
        beginning = first_keys(request.keys, tokens)
        known = self._receivers.of(request.salt, beginning) == wanted.peer
        given = m.GivenState(number, beginning, request.salt, known)
        self._emit(m.LeftState(wanted.query_id, given, False))

    def taken_over(self, message: m.LeftTakenOver, beside: int) -> None:
        """Record the outcome of a given state. A report about an ended one is ignored."""
        given = self._given.pop(message.number, None)
        if given is None:
            return
        taken = message.outcome is m.DrainTargetOutcome.TAKEN
        # Count at most the bytes given, even if the decode node reports more.
        size = min(message.bytes, given.bytes) if taken else 0
        self._leaving.left_bytes += given.bytes - size
        self._leaving.ended(message.outcome, given.tokens, size, message.heir if taken else "")
        self.end_if_over(beside)

    def end_if_over(self, beside: int) -> None:
        """Answer the queries if no request is in flight, no drain target holds an offer, and no
        state is left."""
        leaving = self._leaving
        leaving.look_again(beside)
        if leaving.begun and not (beside or self._given or leaving or self._aside):
            leaving.finish()

    def end(self) -> None:
        """Give no more states, and answer all queries."""
        if self._leaving.over:
            return
        for given in self._given.values():
            self._leaving.ended(m.DrainTargetOutcome.CUT, given.tokens)
        self._given.clear()
        self._leaving.finish(len(self._aside))
        self._aside.clear()

    def _next(self, peer: str, asking: Collection[str]) -> Request | None:
        for each in tuple(self._aside):
            owner, request = each
            if owner == peer or owner not in asking:
                fits = self._fits(request)
                if fits is not None:
                    self._aside.remove(each)
                if fits and stands(self._cache, request):
                    return request
        for _ in range(_MOST_ASIDE - len(self._aside)):
            drawn = self._leaving.draw()
            if drawn is None:
                break
            owner = self._receivers.of(drawn.salt, first_keys(drawn.keys, state_tokens(drawn)))
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
        """Return True if the byte budget suffices for the state. Return None if it may suffice once
        others have reported. A state too large for the whole budget is counted as too much."""
        if self._leaving.whole_bytes(request) <= self._leaving.left_bytes:
            return True
        if self._given:
            return None
        self._leaving.ended(m.DrainTargetOutcome.TOO_MUCH, state_tokens(request))
        return False
