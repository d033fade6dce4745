"""The nodes of a fleet, each with its samples and faults, and the totals of the fleet's page.

FleetNode owns the node's samples. It makes its row when an answer arrives, not when the page asks.
troubles() lists the faults visible in a node's metrics, the worst first. Pure.

Fleet owns the nodes and half an hour of their sums. One thread. Invariant: the page's size is
bounded, for any number of nodes.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from tasuki.dashboard.health import BUSY, Level, Trouble, to_json, troubles_of, worst, worst_first
from tasuki.engine.messages.requests import RequestPhase

from .callers import CallerLoad, Targets, callers, callers_of
from .links import Link, LinkedNode, links_of, matrix
from .memory import arenas_use, memory_of, size_by_tier
from .samples import (
    ANSWERED,
    CHOICE_EXPECTED,
    CHOICE_FOUND,
    CHOICE_REGRET,
    CHOICES,
    FIRST_TOKEN,
    GENERATED,
    INTEGRITY,
    LINK_STATE,
    LOOKED_UP,
    LOST_HANDOVERS,
    NODE,
    PER_TOKEN,
    QUEUE,
    REFUSED,
    REQUESTS,
    ROOM_QUEUE,
    STARTED,
    Buckets,
    Gained,
    RecentSamples,
    Samples,
    buckets_of,
    by_label,
    labels_of,
    one,
    quantile,
    together,
)

_QUEUED = tuple(phase.value for phase in RequestPhase if phase.is_queued)

_LAST_DATE = 1e11

PREFILL = "prefill"
"""The role of a node without requests from clients."""


class FleetNode:
    def __init__(self, address: str, targets: Targets) -> None:
        """Set up a node without samples. address: HOST:PORT of its HTTP server."""
        self.address = address
        self.recent = RecentSamples()
        self.first_token: Buckets = {}
        """Histogram of the recent waits of the node's clients for the first token."""
        self.per_token: Buckets = {}
        self.links: dict[str, Link] = {}
        """Links (hand-over connections) from prefill nodes, by the nodes' names."""
        self.callers: dict[str, CallerLoad] = {}
        """Loads of callers, by name."""
        self.level = Level.FINE
        self.row: dict[str, Any] = {}
        """The node's row in the table of nodes, as JSON."""
        self.answered_at: float | None = None
        self._targets = targets
        self._about: dict[str, Any] = {}
        self._silent_since: float | None = None
        self._draw(())

    @property
    def name(self) -> str:
        return str(self._about.get("node") or self.address)

    @property
    def role(self) -> str:
        return str(self._about.get("role") or "")

    @property
    def state(self) -> str:
        """Return the name of the worst fault's level; `unasked` before the first request."""
        if self.answered_at is None and self._silent_since is None:
            return "unasked"
        return self.level.name.lower()

    def answered(self, now: float, clock: float, samples: Samples) -> None:
        """Record an answer to a poll. now: seconds since 1970. clock: seconds, monotonic."""
        self.answered_at, self._silent_since = now, None
        self.recent.take(clock, samples)
        self._about = {**labels_of(samples, NODE), "started_at": _date(one(samples, STARTED))}
        self._draw(troubles(self.recent, self._targets))

    def failed(self, now: float, reason: str) -> None:
        """Record a poll without an answer. now: seconds since 1970. reason: the cause, in words."""
        if self._silent_since is None:
            self._silent_since = now
        # Drop its last answer: it is from an earlier time, and would be taken for the present.
        self.recent = RecentSamples()
        self._draw((Trouble(Level.DEAD, reason),))

    def _draw(self, found: tuple[Trouble, ...]) -> None:
        self.level = worst(found)
        self.first_token = _buckets(self.recent, FIRST_TOKEN)
        self.per_token = _buckets(self.recent, PER_TOKEN)
        self.links = links_of(self.recent)
        self.callers = callers_of(self.recent)
        self.row = {
            "address": self.address,
            "name": self.name,
            "role": self.role,
            "model": self._about.get("model") or "",
            "version": self._about.get("version") or "",
            "started_at": self._about.get("started_at"),
            "level": self.state,
            "silent_since": self._silent_since,
            "answered_at": self.answered_at,
            "trouble": [to_json(trouble) for trouble in found],
            "ttft": _spread(self.first_token),
            "itl": _spread(self.per_token),
            **_load(self.recent, self.role),
        }


def _load(recent: RecentSamples, role: str) -> dict[str, Any]:
    """Return the node's load as JSON: waits, rates, requests, hits, routing and memory. A value is
    None if it is not known."""
    latest, gained = recent.latest, recent.gained
    states = by_label(latest, REQUESTS, "state")
    waiting = sum(states.get(state, 0.0) for state in _QUEUED)
    return {
        "wait": _spread(_buckets(recent, ROOM_QUEUE if role == PREFILL else QUEUE)),
        "output_rate": None if gained is None or role == PREFILL else gained.rate(GENERATED),
        "prompt_rate": None if gained is None else gained.rate(_hit_names(role)[0]),
        "waiting": waiting if states else None,
        "running": sum(states.values()) - waiting if states else None,
        "hit": _hit_of(gained, role),
        "routing": _routing_of(gained),
        "memory": memory_of(recent),
    }


def _hit_of(gained: Gained | None, role: str) -> dict[str, Any] | None:
    """Return the prompt tokens, usable ones, and lost ones by cause; None without prompts."""
    if gained is None:
        return None
    prompt, usable, lost = _hit_names(role)
    looked_up = one(gained.added, prompt)
    if not looked_up:
        return None
    causes = by_label(gained.added, lost, "cause")
    return {
        "prompt": looked_up,
        "usable": one(gained.added, usable) or 0.0,
        "lost": {cause: tokens for cause, tokens in causes.items() if tokens},
    }


def _routing_of(gained: Gained | None) -> dict[str, Any] | None:
    """Return the choices of prefill nodes: their count by reason, their mean regret, and the gap.

    regret: mean additional cost of the chosen node over the best one, in seconds. gap: share of the
    expected usable tokens not found; None if it is not known. Return None without a choice.
    """
    if gained is None:
        return None
    reasons = {why: n for why, n in by_label(gained.added, CHOICES, "reason").items() if n}
    choices = sum(reasons.values())
    if not choices:
        return None
    regret = one(gained.added, CHOICE_REGRET)
    expected, found = one(gained.added, CHOICE_EXPECTED), one(gained.added, CHOICE_FOUND)
    gap = None if not expected or found is None else (expected - found) / expected
    return {
        "reasons": reasons,
        "regret_seconds": None if regret is None else regret / choices,
        "gap": gap,
    }


def _date(seconds: float | None) -> float | None:
    """Return the date in seconds since 1970; None if it is not positive or too late to be a
    date."""
    return seconds if seconds is not None and 0 < seconds < _LAST_DATE else None


def _buckets(recent: RecentSamples, name: str) -> Buckets:
    return {} if recent.gained is None else buckets_of(recent.gained.added, name)


def _spread(buckets: Buckets) -> dict[str, float] | None:
    """Return median and 95th percentile in seconds; None without observations."""
    middle, late = quantile(buckets, 0.5), quantile(buckets, 0.95)
    return None if middle is None or late is None else {"p50": middle, "p95": late}


def _hit_names(role: str) -> tuple[str, str, str]:
    return LOOKED_UP if role == PREFILL else ANSWERED


def troubles(recent: RecentSamples, targets: Targets) -> tuple[Trouble, ...]:
    """Return the faults of a reachable node, the worst first."""
    gained = recent.gained
    refused = {} if gained is None else by_label(gained.added, REFUSED, "kind")
    lost = {} if gained is None else by_label(gained.added, LOST_HANDOVERS, "cause")
    found = troubles_of(
        invariants_hold=one(recent.latest, INTEGRITY) != 0.0,
        links=by_label(recent.latest, LINK_STATE, "state"),
        lost_handovers=sum(lost.values()),
        refused=sum(refused.get(kind.value, 0.0) for kind in BUSY),
    )
    late = [] if gained is None else _lateness(gained, targets)
    return worst_first([*found, *late])


def _lateness(gained: Gained, targets: Targets) -> list[Trouble]:
    found = []
    for name, words, target in (
        (FIRST_TOKEN, "TTFT", targets.first_token),
        (PER_TOKEN, "ITL", targets.per_token),
    ):
        late = quantile(buckets_of(gained.added, name), 0.95)
        if late is not None and late > target:
            found.append(Trouble(Level.SLOW, f"{words} p95 over {_seconds(target)}"))
    return found


def _seconds(value: float) -> str:
    return f"{value:g} s" if value >= 1 else f"{value * 1000:g} ms"


MOST_ROWS = 100
_POINTS = 360
_MOST_NAMES = 4
"""Number of roles and of models shown. Other hosts send these names, so they can be any text."""
_COLUMNS = ("output_rate", "ttft_p50", "ttft_p95")

Order = Callable[[FleetNode], Any]


def _largest(field: str, part: str | None = None) -> Order:
    """Return a sort key for nodes by a field of the row: the largest first, unknown values last."""

    def key(node: FleetNode) -> tuple[float, str, str]:
        value = node.row[field]
        if part is not None and value is not None:
            value = value[part]
        return (1.0 if value is None else -value, node.name, node.address)

    return key


def _by_hit(node: FleetNode) -> tuple[float, str, str]:
    """Return a node's sort key by hit rate: the lowest first, because operators look for it."""
    hit = node.row["hit"]
    return (2.0 if hit is None else hit["usable"] / hit["prompt"], node.name, node.address)


ORDERS: dict[str, Order] = {
    "trouble": lambda node: (-node.level, -(node.row["waiting"] or 0.0), node.name, node.address),
    "name": lambda node: (node.name, node.address),
    "ttft": _largest("ttft", "p95"),
    "itl": _largest("itl", "p95"),
    "output": _largest("output_rate"),
    "queue": _largest("waiting"),
    "hit": _by_hit,
}
"""Sort orders of the table of nodes, by name."""


class Fleet:
    def __init__(self, targets: Targets | None = None) -> None:
        self.targets = targets or Targets()
        self._nodes: dict[str, FleetNode] = {}
        self._series: deque[tuple[float, dict[str, float | None]]] = deque(maxlen=_POINTS)

    def set_members(self, addresses: Iterable[str]) -> None:
        """Set the fleet's members. Nodes no longer among them are forgotten."""
        self._nodes = {
            address: self._nodes.get(address) or FleetNode(address, self.targets)
            for address in addresses
        }

    def answered(self, address: str, now: float, clock: float, samples: Samples) -> None:
        """Record an answer as FleetNode.answered() does. Ignore the address of a former member."""
        if address in self._nodes:
            self._nodes[address].answered(now, clock, samples)

    def failed(self, address: str, now: float, reason: str) -> None:
        if address in self._nodes:
            self._nodes[address].failed(now, reason)

    def mark_time(self, now: float) -> None:
        """Add the fleet's present sums to their history. now: seconds since 1970."""
        totals = self._totals()
        self._series.append(
            (
                now,
                {
                    "output_rate": totals["output_rate"],
                    "ttft_p50": totals["ttft"]["p50"],
                    "ttft_p95": totals["ttft"]["p95"],
                },
            )
        )

    def summary(self, now: float) -> dict[str, Any]:
        """Return the sums over all nodes, and their history. now: seconds since 1970."""
        columns = {name: [point[name] for _, point in self._series] for name in _COLUMNS}
        return {
            "at": now,
            "targets": {"ttft": self.targets.first_token, "itl": self.targets.per_token},
            "totals": self._totals(),
            "series": {"at": [at for at, _ in self._series], **columns},
        }

    def nodes(self, wanted: str, order: str, offset: int, count: int) -> dict[str, Any]:
        """Return rows [offset, offset + count) of the matching nodes in the given order. wanted:
        words. Each must occur in the node's name, address, role, model or level. order: a key of
        ORDERS. REQUIRES: count <= MOST_ROWS."""
        words = wanted.lower().split()
        matched = [node for node in self._nodes.values() if _matches(node, words)]
        matched.sort(key=ORDERS[order])
        return {
            "known": len(self._nodes),
            "matched": len(matched),
            "offset": offset,
            "rows": [node.row for node in matched[offset : offset + count]],
        }

    def links(self, wanted: str) -> dict[str, Any]:
        """Return the matrix of links between the nodes. wanted: text in a node's name or
        address."""
        linked = (
            LinkedNode(node.address, node.name, node.links)
            for node in self._nodes.values()
            if node.links
        )
        return matrix(linked, wanted.lower())

    def callers(self, wanted: str) -> dict[str, Any]:
        loads = (node.callers for node in self._nodes.values())
        return callers(loads, self.targets, wanted.lower())

    def _totals(self) -> dict[str, Any]:
        nodes = self._nodes.values()
        # Leave prefill nodes out: a handed-over prompt was looked up at both ends, but its client
        # asked once.
        asked = [node.row["hit"] for node in nodes if node.role != PREFILL]
        hits = [hit for hit in asked if hit is not None]
        return {
            "nodes": len(self._nodes),
            "levels": Counter(node.state for node in nodes),
            "roles": _commonest(node.role for node in nodes),
            "models": list(_commonest(node.row["model"] for node in nodes)),
            "arena": arenas_use(node.row["memory"] for node in nodes),
            "memory": size_by_tier(node.row["memory"] for node in nodes),
            "output_rate": _sum(node.row["output_rate"] for node in nodes),
            "waiting": sum(node.row["waiting"] or 0.0 for node in nodes),
            "running": sum(node.row["running"] or 0.0 for node in nodes),
            "ttft": _percentiles(together(node.first_token for node in nodes)),
            "itl": _percentiles(together(node.per_token for node in nodes)),
            "hit": {
                "prompt": sum(hit["prompt"] for hit in hits),
                "usable": sum(hit["usable"] for hit in hits),
                "lost": sum((Counter(hit["lost"]) for hit in hits), Counter()),
            },
        }


def _commonest(names: Iterable[str]) -> dict[str, int]:
    """Return the _MOST_NAMES commonest names with their counts, without the empty name."""
    return dict(Counter(filter(None, names)).most_common(_MOST_NAMES))


def _sum(rates: Iterable[float | None]) -> float | None:
    """Return the sum of the known rates; None if no rate is known. An unknown rate is None."""
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _percentiles(buckets: Buckets) -> dict[str, float | None]:
    return {"p50": quantile(buckets, 0.5), "p95": quantile(buckets, 0.95)}


def _matches(node: FleetNode, words: list[str]) -> bool:
    if not words:
        return True
    row = node.row
    level = "ok" if row["level"] == "fine" else row["level"]
    text = " ".join((row["name"], node.address, row["role"], row["model"], level)).lower()
    return all(word in text for word in words)
