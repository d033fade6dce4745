"""The choice of the node to compute a prompt, by costs learned from this engine's own forwards."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tasuki.engine.accounting import FRESH, Line, LineFit
from tasuki.pycache._cpp_cache import Match
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.routing.node_load import PrefillSeconds, faded
from tasuki.transfer.chunks.descriptors import UnitSizes

from . import messages as m
from .config import EngineConfig
from .messages import Choice, RouteReport


@dataclass(frozen=True)
class Rates:
    """Measured rates, for two decisions about a prompt. Is it computed on the decode node or handed
    over? If handed over, is the prefix pulled or computed again?

    Values and pure functions; `CostLearner` measures. The decode node makes the first decision. The
    prefill node makes the second one, because only it knows its prefix tree. Units: seconds,
    tokens, bytes. Invariant: equal arguments give equal decisions. Without measured rates a
    configured number of tokens decides.

    Each field is a line of seconds over an amount; None: not known, or not recently measured. here:
    over tokens computed on this node, from allocation to first token. there: over tokens computed
    by a prefill node, from the request to the arrival of the first token, including waits and
    pulls. sent: over bytes received from a prefill node. pulled: over bytes pulled by a prefill
    node. forwarded: over prompt tokens of a forward, for the forward alone without waits.
    """

    here: Line | None = None
    there: Line | None = None
    sent: Line | None = None
    pulled: Line | None = None
    forwarded: Line | None = None


@dataclass(frozen=True)
class RoutingDecision:
    """A choice with its estimates. estimates: seconds by name; empty if a constant decided."""

    choice: Choice
    estimates: dict[str, float] = field(default_factory=dict)

    @property
    def learnt(self) -> bool:
        return bool(self.estimates)


def choose_prefill_place(rates: Rates, tokens: int, size: int, at_most: int) -> RoutingDecision:
    """Return HERE (the decode node) or THERE (a prefill node) for a prompt with `tokens` tokens to
    compute. size: bytes sent back by a prefill node. at_most: most tokens to compute here while the
    rates are not known.

    Sending overlaps with computing; only the rest of the sending counts.
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
    """Return PULLED, or THERE without a pull. tokens: number of tokens to pull in `size` bytes
    instead of computing them. at_least: fewest tokens to pull while the rates are not known. ahead:
    seconds of prompts computed before this one in any case.

    Pulled tokens save no forward, they only shorten it: the fixed part is still paid. A pull of at
    least `at_least` tokens overlaps with the prompts ahead, and only the rest of the pull counts. A
    shorter pull gets no such credit, because it costs both nodes work.
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
    """The measurement of Rates: one line fitted for each of its fields."""

    here: LineFit = field(default_factory=LineFit)
    there: LineFit = field(default_factory=LineFit)
    sent: LineFit = field(default_factory=LineFit)
    pulled: LineFit = field(default_factory=LineFit)
    forwarded: LineFit = field(default_factory=LineFit)

    def rates(self) -> Rates:
        return Rates(**{name: fit.line() for name, fit in vars(self).items()})

    def judged(self) -> None:
        """Count a decision. The fits grow older with decisions until they get a new sample."""
        for fit in vars(self).values():
            stale = fit.verdicts_since > FRESH
            fit.verdicts_since = 0 if stale else fit.verdicts_since + 1


ASSUMED = Line(0.01, 1e-4)
"""Assumed seconds of a forward and of each of its tokens, until forwards were measured."""


class PrefillSpeed:
    """An engine's prefill speed, learned from its forwards. Thread rule: the engine loop's.

    The unit of work is a token without earlier tokens. A token after others costs more, because
    attention reads each of them.
    """

    def __init__(self, attention_cost: float, chunk_tokens: int) -> None:
        """attention_cost: cost of reading one earlier token, as a part of a token's other work.
        chunk_tokens: most tokens of a forward."""
        self._attention_cost = attention_cost
        self._chunk_tokens = chunk_tokens
        self._forwards = LineFit()

    def add(self, parts: Iterable[tuple[int, int]], seconds: float) -> None:
        """Add a measured forward; ignore one without work. parts: ranges [first, last) of prompt
        tokens computed in it. seconds: duration of the forward alone."""
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
    """The seconds of prefill left in an engine's transfers, and the times to report them. Thread
    rule: the engine loop's.

    Invariant: an empty load is reported immediately, and so is a new transfer. Otherwise there is
    at most one report every REPORT_SECONDS.
    """

    def __init__(self, speed: PrefillSpeed) -> None:
        self._speed = speed
        self._left: dict[m.TransferId, float] = {}
        self._peers: dict[m.TransferId, str] = {}
        """Name of the decode node owning each transfer, by transfer id."""
        self._stored = 0.0
        self._stored_at = 0.0
        self._new = 0.0
        """Seconds of prefill completed by forwards since the last report."""
        self._changed = True
        self._reported_at = -math.inf

    @property
    def wait(self) -> float:
        """Return the seconds of prefill left in all transfers."""
        return sum(self._left.values())

    def left(self, transfer_id: m.TransferId) -> float:
        """Return the seconds of prefill left in one transfer's prompt; 0 if it is computed."""
        return self._left.get(transfer_id, 0.0)

    @property
    def waits(self) -> dict[str, float]:
        """Return the seconds of prefill left, by decode node."""
        waits: dict[str, float] = {}
        for transfer_id, left in self._left.items():
            waits[self._peers[transfer_id]] = waits.get(self._peers[transfer_id], 0.0) + left
        return waits

    def enter(
        self,
        transfer_id: m.TransferId,
        cached: int,
        tokens: int,
        peer: str = "",
        encodes: float = 0.0,
    ) -> None:
        """Add a transfer with a prompt of `tokens` tokens. cached: number of first tokens without
        need of computing. peer: name of the decode node owning the transfer. encodes: work of its
        pictures, in tokens."""
        self._peers[transfer_id] = peer
        seconds = self._speed.seconds
        self._left[transfer_id] = seconds.between(cached, tokens) + encodes * seconds.token
        self._changed = True
        self._reported_at = -math.inf

    def computes(self, transfer_id: m.TransferId, stop: int, tokens: int) -> None:
        """Record a transfer's prompt as computed up to token `stop` by the next forward. Ignore an
        unknown transfer. tokens: the prompt's length."""
        if transfer_id in self._left:
            before = self._left[transfer_id]
            left = self._speed.seconds.between(stop, tokens) if stop < tokens else 0.0
            self._left[transfer_id] = min(before, left)
            self._new += before - self._left[transfer_id]
            self._changed = True

    def leave(self, transfer_id: m.TransferId) -> None:
        """Remove a transfer: its prompt is computed, or no longer needed. Idempotent. After the
        last one, the next report is due."""
        if self._left.pop(transfer_id, None) is None:
            return
        del self._peers[transfer_id]
        self._changed = True
        if not self._left:
            self._reported_at = -math.inf

    def report(self, now: float, pull_seconds: Callable[[], Line | None]) -> m.PrefillLoad | None:
        """Return a report if one is due and something has changed, else None. now: monotonic
        seconds. pull_seconds: returns the line of a pull's seconds over its tokens, if known."""
        if not self._changed or now - self._reported_at < REPORT_SECONDS:
            return None
        self._changed, self._reported_at = False, now
        self._stored = faded(self._stored, now - self._stored_at) + self._new
        self._stored_at, self._new = now, 0.0
        pull = pull_seconds()
        pulled = None if pull is None else (pull.fixed, pull.each)
        return m.PrefillLoad(self.wait, self._speed.seconds, pulled, self._stored, self.waits)


class Router:
    """Decisions about the node to compute a prompt and about pulling its prefix. Learned rates
    decide, or the configured constants. Thread rule: the engine loop's.

    costs: the measurement of prompts' costs; callers add samples here.
    """

    def __init__(self, config: EngineConfig, layout: CacheLayout, wire: UnitSizes) -> None:
        """wire: byte lengths of the transferred units (page blocks and states)."""
        self._config = config
        self._page_bytes = sum(wire.block_length(region.layer) for region in layout.regions)
        self._state_bytes = sum(wire.state_length(layer) for layer in range(len(layout.layers)))
        self.costs = CostLearner()

    def prefill_place(self, match: Match, encodes: float = 0.0) -> RoutingDecision:
        """Return HERE (this node) or THERE (a prefill node) for the prompt of the cache match.
        encodes: work of its pictures without rows, in tokens."""
        rates = self._rates()
        self.costs.judged()
        return choose_prefill_place(
            rates,
            match.prompt_tokens - usable_here(match) + round(encodes),
            self.state_bytes(match.kv_tokens, match.prompt_tokens),
            self._config.local_prefill_tokens,
        )

    @property
    def local_tokens(self) -> int:
        """Return the most tokens always computed on this node while no rates are measured."""
        return self._config.local_prefill_tokens

    def pull(
        self, match: Match, offered: int, ahead: float, encodes: float = 0.0
    ) -> RoutingDecision:
        """Return PULLED or THERE. offered: number of first tokens with KV and state at the
        receiver. ahead: seconds of prompts computed before this one. encodes: work of the pictures
        among the tokens to pull, in tokens. This call does not count as a
        decision, because it is repeated at every step while a prompt waits. The caller counts the
        decision it acts on."""
        new = offered - match.usable_tokens
        return should_pull(
            self._rates(),
            new + round(encodes) if new > 0 else new,
            self.state_bytes(min(match.kv_tokens, offered), offered),
            self._config.pull_tokens,
            ahead,
        )

    def pull_seconds(self) -> Line | None:
        """Return the line of a pull's seconds over its tokens; None if too few are measured."""
        by_bytes = self.costs.pulled.line()
        if by_bytes is None:
            return None
        each = by_bytes.each * self._page_bytes / PAGE_TOKENS
        return Line(by_bytes.seconds(self._state_bytes), each)

    def _rates(self) -> Rates:
        """Return the measured rates for a decision; none of them if the config's route is fixed."""
        if self._config.route == "fixed":
            return Rates()
        return self.costs.rates()

    def state_bytes(self, held: int, tokens: int) -> int:
        """Return the bytes to send to a node for its missing part of a prompt: the state after
        `tokens` tokens, and their pages. held: number of first tokens with KV there."""
        pages = -(-tokens // PAGE_TOKENS) - held // PAGE_TOKENS
        return pages * self._page_bytes + self._state_bytes


def usable_here(match: Match) -> int:
    """Return the number of first tokens usable on this node, also those loadable from below."""
    return max([match.usable_tokens, *(stored.boundary for stored in match.stored)])


def report(decision: RoutingDecision) -> RouteReport:
    return RouteReport(decision.choice.value, decision.estimates)


def joined(here: m.RouteReport | None, there: m.RouteReport | None) -> m.RouteReport | None:
    """Return this node's route report with the prefill node's choice and estimates added. If either
    report is None, return this node's unchanged."""
    if here is None or there is None:
        return here
    return m.RouteReport(there.choice, {**here.estimates, **there.estimates})
