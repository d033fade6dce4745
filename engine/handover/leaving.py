"""The states handed on to other nodes by an ending engine: selection, order, concurrency and
reports.

An ending decode engine offers its own states to prefill nodes (offered_states.py). An ending
prefill engine gives its states to asking decode nodes, one per request. These fetch each state and
offer it to a staying prefill node. Knows neither connections nor transfers. Thread rule: the engine
loop's.
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
"""States offered at a time while no request is in flight. Together they have at most the tokens of
one drain target's limit of pulls, for a drain target of this node's size. If all went to one drain
target, it would decline any more."""
BESIDE = 2
"""States offered at a time while any request is in flight, because answers come first."""
MOST_STATES = 1024
"""Most states selected during the whole handing on."""
_PART_OF_ARENA = 4
"""Divisor of the arena's bytes: drain targets are sent at most a quarter of it, because the sent
states displace the drain targets' own."""
_LAST = 1_000_000
"""Priority of handed-on states at a drain target: after all requests with a waiting client."""


def as_request(name: m.RequestId, keys: Keys, salt: bytes) -> Request:
    """Return a one-token request used to hand a stored state on. The state covers all tokens of the
    prompt except the last. Other nodes compare its keys; no node embeds its tokens."""
    return Request(
        name,
        PromptTokens(keys),
        SamplingParams(max_new_tokens=1),
        salt,
        priority=_LAST,
        purpose=m.Purpose.INHERIT,
    )


def state_tokens(request: Request) -> int:
    """Return the number of tokens of the request's stored state: all of the prompt but the last."""
    return len(request.prompt) - 1


def stands(cache: HybridPrefixCache, request: Request) -> bool:
    """Return True if the stored state of the request is still in the cache."""
    match = cache.match(request.keys, request.salt)
    return match.usable_tokens == state_tokens(request)


class Leaving:
    """The handing on of an ending engine's states, from the first query to its answer. Holds the
    queue of untried states, the remaining byte budget, and the outcomes.

    Asks the cache; owns nothing of it. Invariants: a state is selected once. A selected state is in
    the cache; it covers all tokens of its request except the last. Nothing is selected before
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
        """Prefix of the request ids for handed-on states; no caller's request has it."""
        self._line: deque[HeldState] = deque()
        self._drawn: set[tuple[int, int | None, int]] = set()
        self._beside = 0
        """Number of requests in flight when the queue of untried states was last formed."""
        self._asked: list[int] = []
        self._over = False
        self._outcomes: Counter[m.DrainTargetOutcome] = Counter()
        self._tokens = self._bytes = 0

    def __len__(self) -> int:
        """Return the number of untried states in the queue."""
        return len(self._line)

    @property
    def begun(self) -> bool:
        """True from the first query until finish()."""
        return bool(self._asked) and not self._over

    @property
    def over(self) -> bool:
        return self._over

    def begin(self, query_id: int, beside: int) -> bool:
        """Accept a query to hand states on. Return True if it is the first and not after the end; a
        query after the end is answered immediately. beside: number of requests in flight."""
        first = not (self._asked or self._over)
        self._asked.append(query_id)
        if self._over:
            self._answer(len(self._line))
        elif first:
            self._form_line(beside)
        return first

    def finish(self, aside: int = 0) -> None:
        """Select no more states, and answer all queries. aside: number of states never offered."""
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
        """Report the outcome of a handed-on state of `tokens` tokens. Only a taken state adds to
        the totals. size: bytes pulled by the drain target. drain_target: its name."""
        self._outcomes[outcome] += 1
        if outcome is m.DrainTargetOutcome.TAKEN:
            self._tokens += tokens
            self._bytes += size
        self._emit(m.StateLeft(outcome, tokens, size, drain_target))

    def look_again(self, beside: int) -> None:
        """Form the queue of untried states again if requests have ended since the last time. Their
        states are the most valuable. Keep a queue with states while requests are in flight. beside:
        number of requests in flight."""
        if self.begun and beside < self._beside and not (self._line and beside):
            self._form_line(beside)

    def _form_line(self, beside: int) -> None:
        """Queue the cached states not selected yet, the most valuable first."""
        self._beside = beside
        states = self._cache.most_valuable(MOST_STATES)
        self._line = deque(
            state
            for state in states
            if state.boundary >= PAGE_TOKENS and state.name not in self._drawn
        )

    def draw(self) -> Request | None:
        """Select the next state. Return it as a one-token request behind the state; None if the
        queue is empty or MOST_STATES were selected. Skip states gone from the cache."""
        while self._line and len(self._drawn) < MOST_STATES:
            state = self._line.popleft()
            self._drawn.add(state.name)
            request = self._request(state)
            if request is not None and stands(self._cache, request):
                return request
        return None

    def whole_bytes(self, request: Request) -> int:
        """Return the bytes of the request's stored state together with all its pages."""
        return self._router.state_bytes(0, state_tokens(request))

    def _request(self, state: HeldState) -> Request | None:
        """Return a one-token request behind the stored state. Return None if the state is gone, or
        a request of its length would be refused."""
        path = self._cache.path_to(state)
        if path is None:
            return None
        salt, tokens = path
        # A match ends before a prompt's last token, so any last token will do.
        prompt = repeat_last(tokens)
        if self._intake.state_misfit(prompt) is not None:
            return None
        return as_request(m.RequestId(f"{self._name}-{len(self._drawn)}"), prompt, salt)


MOST = 1 << 14
_NAME_BYTES = 16


class SoleReceivers:
    """The prefixes handed over to exactly one decode node. Their sessions continue at this decode
    node, so it holds longer states of them than this engine.

    Owns names of the latest MOST prefixes. The record is a hint: a wrong entry costs one message.
    Thread rule: the engine loop's. Invariant: a prefix of several prompts has no such decode node,
    because other nodes may continue it.
    """

    def __init__(self) -> None:
        self._peers: OrderedDict[bytes, str | None] = OrderedDict()
        """Decode node by prefix name; None for a prefix of several prompts."""

    def note(self, salt: bytes, tokens: Keys, peer: str) -> None:
        """Record a prompt handed over to the decode node `peer`. A second record of a prompt leaves
        it without a sole receiver. Only the newest MOST are kept. tokens: the prompt's first
        tokens, covered by the stored state."""
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
"""Most states selected but kept for certain decode nodes until they ask. Each holds its tokens."""


@dataclass(frozen=True)
class _Given:
    tokens: int
    bytes: int


class LeftStates:
    """The states given by an ending prefill engine to asking decode nodes.

    Owns the record of each given state until its decode node reports the outcome. Invariants: a
    state is given once. At most ALONE states are given at a time, and BESIDE while any request is
    in flight. The bytes of given or taken states never exceed the byte budget. A state handed over
    earlier to a single decode node is given to no other, while this node is asking. A state without
    an outcome at end() is counted as cut.
    """

    def __init__(self, context: HandoverContext, receivers: SoleReceivers) -> None:
        self._cache = context.cache
        self._emit = context.emit
        self._receivers = receivers
        self._leaving = Leaving(context)
        self._numbers = count(1)
        self._given: dict[int, _Given] = {}
        self._aside: list[tuple[str | None, Request]] = []
        """Selected states waiting for a decode node to ask: (decode node, request). A state with
        None as its decode node goes to any node, once the byte budget suffices."""

    def begin(self, query_id: int, beside: int) -> None:
        """Accept a query to hand this engine's states on. Emit LeavingBegun at the first one, if
        this does not finish it. beside: number of requests in flight."""
        if self._leaving.begin(query_id, beside):
            self.end_if_over(beside)
            if self._leaving.begun:
                self._emit(m.LeavingBegun())

    def give(self, wanted: m.LeftWanted, beside: int) -> None:
        """Answer a decode node's request with the most valuable state allowed for it now, or with
        none. beside: number of requests in flight."""
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
        """Record the outcome of a given state. A report about a state no longer given is ignored.
        beside: number of requests in flight."""
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
        """Answer the queries and finish, if no request is in flight, no given state lacks its
        outcome, and no state remains. beside: number of requests in flight."""
        leaving = self._leaving
        leaving.look_again(beside)
        if leaving.begun and not (beside or self._given or leaving or self._aside):
            leaving.finish()

    def end(self) -> None:
        """Give no more states, count given states without an outcome as cut, and answer all
        queries. Idempotent."""
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
        """Return True if the byte budget suffices for the state. Return None if it may suffice
        after outcomes of given states return bytes. A state larger than the whole remaining budget
        is counted as TOO_MUCH."""
        if self._leaving.whole_bytes(request) <= self._leaving.left_bytes:
            return True
        if self._given:
            return None
        self._leaving.ended(m.DrainTargetOutcome.TOO_MUCH, state_tokens(request))
        return False
