"""Where a prompt is computed, by costs learned from this engine's own forwards.

Owns decayed sums and no clock: callers bring durations. Thread rule: the engine loop's. Equal
arguments give equal decisions; without measured rates the configured constants decide.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tasuki.engine.accounting import FRESH, Line, LineFit
from tasuki.pycache._cpp_cache import Match
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.routing.node_load import PrefillSeconds, faded
from tasuki.transfer.windows.descriptors import UnitSizes

from . import messages as m
from .config import EngineConfig
from .messages import Choice, RouteReport


@dataclass(frozen=True)
class Rates:
    """How fast things were, and what that says about a prompt: compute it here or have it handed
    over; and over there, fetch the answer's prefix or compute it again.

    Values and pure functions; `CostLearner` measures. Whoever knows decides: the decode node
    between here and there, the prefill node between pulling and computing, since only it knows what
    its tree holds. Seconds, tokens, bytes. Invariant: equal arguments, equal decisions; without
    measured rates a constant number of tokens decides, as configured.

    None: not known, or not lately. here: tokens computed on this node, from allocation to first
    token. there: tokens computed by a prefill node, from asking to the first token's coming, waits
    and pulls included. sent: bytes that came from one. pulled: bytes that were fetched for one.
    forwarded: prompt tokens of a forward, which alone counts, not what waited beside it.
    """

    here: Line | None = None
    there: Line | None = None
    sent: Line | None = None
    pulled: Line | None = None
    forwarded: Line | None = None


@dataclass(frozen=True)
class RoutingDecision:
    """estimates: seconds by what they are of; empty where a constant decided."""

    choice: Choice
    estimates: dict[str, float] = field(default_factory=dict)

    @property
    def learnt(self) -> bool:
        return bool(self.estimates)


def choose_prefill_place(rates: Rates, tokens: int, size: int, at_most: int) -> RoutingDecision:
    """HERE or THERE for a prompt of which `tokens` are to be computed; `size` bytes would come. At
    most `at_most` tokens stay while the rates are not known.

    What is sent hides behind what is computed; only the rest of it counts.
    """
    if rates.here is None or rates.there is None or rates.sent is None:
        return RoutingDecision(Choice.HERE if tokens <= at_most else Choice.THERE)
    here = rates.here.seconds(tokens)
    hidden = rates.there.each * tokens
    there = rates.there.seconds(tokens) + max(0.0, rates.sent.seconds(size) - hidden)
    estimates = {"here": here, "there": there}
    return RoutingDecision(Choice.HERE if here <= there else Choice.THERE, estimates)


def should_pull(
    rates: Rates, tokens: int, size: int, at_least: int, ahead: float = 0.0
) -> RoutingDecision:
    """PULLED, or THERE without a pull, where `tokens` in `size` bytes could be fetched instead of
    computed. At least `at_least` are fetched while the rates are not known. ahead: seconds of
    prompts that are computed before this one in any case.

    Fetched tokens save no forward, only its length: the fixed part is paid all the same. A fetch of
    at least `at_least` tokens hides behind the prompts ahead, and only the rest of it counts; for
    fewer it is not worth the work that it is for both nodes.
    """
    if tokens <= 0:
        return RoutingDecision(Choice.THERE)
    if rates.forwarded is None or rates.pulled is None:
        return RoutingDecision(Choice.PULLED if tokens >= at_least else Choice.THERE)
    hidden = ahead if tokens >= at_least else 0.0
    estimates = {
        "pull": max(0.0, rates.pulled.seconds(size) - hidden),
        "compute": rates.forwarded.each * tokens,
    }
    pays = estimates["pull"] < estimates["compute"]
    return RoutingDecision(Choice.PULLED if pays else Choice.THERE, estimates)


@dataclass
class CostLearner:
    """One fit for each of Rates' lines, which see."""

    here: LineFit = field(default_factory=LineFit)
    there: LineFit = field(default_factory=LineFit)
    sent: LineFit = field(default_factory=LineFit)
    pulled: LineFit = field(default_factory=LineFit)
    forwarded: LineFit = field(default_factory=LineFit)

    def rates(self) -> Rates:
        return Rates(*(fit.line() for fit in self._fits))

    def judged(self) -> None:
        """A decision was given: what it did not choose grows stale."""
        for fit in self._fits:
            stale = fit.verdicts_since > FRESH
            fit.verdicts_since = 0 if stale else fit.verdicts_since + 1

    @property
    def _fits(self) -> tuple[LineFit, ...]:
        """In the order of Rates."""
        return self.here, self.there, self.sent, self.pulled, self.forwarded


ASSUMED = Line(0.01, 1e-4)
"""Seconds of a forward and of each of its tokens, until some were measured."""


class PrefillSpeed:
    """How fast an engine computes prompts, learnt from its forwards. Thread rule: the engine
    loop's.

    A token is the unit of work; one behind others costs more, by what attention reads of each of
    them.
    """

    def __init__(self, attention_cost: float, chunk_tokens: int) -> None:
        """attention_cost: of a token for each before it, as a part of its other work. chunk_tokens:
        of a forward, at most."""
        self._attention_cost = attention_cost
        self._chunk_tokens = chunk_tokens
        self._forwards = LineFit()

    def add(self, parts: Iterable[tuple[int, int]], seconds: float) -> None:
        """A forward of these parts of prompts, [first, last) tokens each, took so long alone."""
        work = sum(self._work(last) - self._work(first) for first, last in parts)
        if work > 0:
            self._forwards.add(work, seconds)

    @property
    def seconds(self) -> PrefillSeconds:
        line = self._forwards.line() or ASSUMED
        return PrefillSeconds(
            line.fixed,
            line.each + line.fixed / self._chunk_tokens,
            line.each * self._attention_cost,
        )

    def _work(self, tokens: int) -> float:
        return tokens + self._attention_cost * tokens * tokens / 2


REPORT_SECONDS = 0.25


class PrefillLoad:
    """What a prefill engine has still to compute of its rooms' prompts, in seconds, and when that
    is to be reported. Thread rule: the engine loop's.

    Invariant: once nothing is left to compute, that is reported at once; else at most every
    REPORT_SECONDS, but for rooms that come.
    """

    def __init__(self, speed: PrefillSpeed) -> None:
        self._speed = speed
        self._left: dict[m.RoomId, float] = {}
        self._peers: dict[m.RoomId, str] = {}
        """Whose room it is."""
        self._stored = 0.0
        self._stored_at = 0.0
        self._new = 0.0
        """Seconds of prefill that forwards took off since the last report."""
        self._changed = True
        self._reported_at = -math.inf

    @property
    def wait(self) -> float:
        """Seconds of prefill that are left."""
        return sum(self._left.values())

    def left(self, room: m.RoomId) -> float:
        """Seconds of prefill that are left of one room's prompt."""
        return self._left.get(room, 0.0)

    @property
    def waits(self) -> dict[str, float]:
        """The same by whose rooms they are."""
        waits: dict[str, float] = {}
        for room, left in self._left.items():
            waits[self._peers[room]] = waits.get(self._peers[room], 0.0) + left
        return waits

    def enter(self, room: m.RoomId, cached: int, tokens: int, peer: str = "") -> None:
        """A prompt of `tokens`, of which `cached` need not be computed. peer: whose room it is."""
        self._peers[room] = peer
        self._left[room] = self._speed.seconds.between(cached, tokens)
        self._changed = True
        self._reported_at = -math.inf

    def computes(self, room: m.RoomId, stop: int, tokens: int) -> None:
        """A forward is about to compute the prompt up to `stop`."""
        if room in self._left:
            before = self._left[room]
            left = self._speed.seconds.between(stop, tokens) if stop < tokens else 0.0
            self._left[room] = min(before, left)
            self._new += before - self._left[room]
            self._changed = True

    def leave(self, room: m.RoomId) -> None:
        """Its prompt is computed, or is not to be any more."""
        if self._left.pop(room, None) is None:
            return
        del self._peers[room]
        self._changed = True
        if not self._left:
            self._reported_at = -math.inf

    def report(self, now: float, pull_seconds: Callable[[], Line | None]) -> m.PrefillLoad | None:
        """Where there is something to report. now: monotonic seconds. pull_seconds: what a pull
        takes, by its tokens, where that is known."""
        if not self._changed or now - self._reported_at < REPORT_SECONDS:
            return None
        self._changed, self._reported_at = False, now
        self._stored = faded(self._stored, now - self._stored_at) + self._new
        self._stored_at, self._new = now, 0.0
        pull = pull_seconds()
        pulled = None if pull is None else (pull.fixed, pull.each)
        return m.PrefillLoad(self.wait, self._speed.seconds, pulled, self._stored, self.waits)


class Router:
    """Where a prompt is computed and whether its beginning is pulled, by what the engine learnt or
    by the configured constants. Thread rule: the engine loop's.

    costs: who measures adds what a prompt took.
    """

    def __init__(self, config: EngineConfig, layout: CacheLayout, wire: UnitSizes) -> None:
        """wire: lengths in bytes of what travels."""
        self._config = config
        self._layout = layout
        self._wire = wire
        self.costs = CostLearner()

    def prefill_place(self, match: Match) -> RoutingDecision:
        """HERE or THERE, for the prompt of the match."""
        rates = self._rates()
        self.costs.judged()
        return choose_prefill_place(
            rates,
            match.prompt_tokens - usable_here(match),
            self.state_bytes(match.kv_tokens, match.prompt_tokens),
            self._config.local_prefill_tokens,
        )

    @property
    def local_tokens(self) -> int:
        """So many are always computed here while nothing was measured."""
        return self._config.local_prefill_tokens

    def pull(self, match: Match, offered: int, ahead: float) -> RoutingDecision:
        """PULLED or not, where the receiver has KV and state of `offered` tokens. ahead: seconds of
        prompts that are computed before this one. Of a prompt that waits this is asked at every
        step: only what is acted on counts as judged."""
        return should_pull(
            self._rates(),
            offered - match.usable_tokens,
            self.state_bytes(min(match.kv_tokens, offered), offered),
            self._config.pull_tokens,
            ahead,
        )

    def pull_seconds(self) -> Line | None:
        """What a pull takes, by its tokens; None where too few were measured."""
        by_bytes = self.costs.pulled.line()
        if by_bytes is None:
            return None
        page = len(self._layout.regions) * self._wire.block_bytes
        return Line(by_bytes.seconds(self._state_bytes()), by_bytes.each * page / PAGE_TOKENS)

    def _rates(self) -> Rates:
        """What may decide now; nothing measured where the constants are to."""
        if self._config.route == "fixed":
            return Rates()
        return self.costs.rates()

    def state_bytes(self, held: int, tokens: int) -> int:
        """Of the pages of `tokens` that a side lacks which holds KV of `held`, and of the state."""
        pages = -(-tokens // PAGE_TOKENS) - held // PAGE_TOKENS
        return pages * len(self._layout.regions) * self._wire.block_bytes + self._state_bytes()

    def _state_bytes(self) -> int:
        states = self._layout.gdn_layers * self._wire.state_layer_bytes
        return states + self._wire.carry_bytes


def usable_here(match: Match) -> int:
    """Tokens that need not be computed here, with those that a load from below the arena brings."""
    return max([match.usable_tokens, *(stored.boundary for stored in match.stored)])


def report(decision: RoutingDecision) -> RouteReport:
    return RouteReport(decision.choice.value, decision.estimates)


def joined(here: m.RouteReport | None, there: m.RouteReport | None) -> m.RouteReport | None:
    """What this node judged, and then the prefill node."""
    if here is None or there is None:
        return here
    return m.RouteReport(there.choice, {**here.estimates, **there.estimates})
