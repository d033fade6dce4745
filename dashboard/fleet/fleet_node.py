"""One node of a fleet: its answers, its last samples, and its faults.

FleetNode owns the node's samples. One thread. Its row is made when an answer arrives, not when the
page asks.

troubles(): Lists a node's faults as far as its metrics show them, the worst first. Pure.
"""

from typing import Any

from tasuki.dashboard.health import BUSY, Level, Trouble, to_json, troubles_of, worst, worst_first
from tasuki.engine.messages.requests import RequestPhase

from .callers import CallerLoad, Targets, callers_of
from .links import Link, links_of
from .memory import memory_of
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
)

_QUEUED = tuple(phase.value for phase in RequestPhase if phase.is_queued)

_LAST_DATE = 1e11

PREFILL = "prefill"
"""The role of a node that clients do not ask."""


class FleetNode:
    def __init__(self, address: str, targets: Targets) -> None:
        """address: HOST:PORT of its HTTP server."""
        self.address = address
        self.recent = RecentSamples()
        self.first_token: Buckets = {}
        """What its clients waited lately."""
        self.per_token: Buckets = {}
        self.links: dict[str, Link] = {}
        """From prefill nodes, by their names."""
        self.callers: dict[str, CallerLoad] = {}
        """By their names."""
        self.level = Level.FINE
        self.row: dict[str, Any] = {}
        """As JSON: what the table of nodes shows."""
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
        """Its level's name; `unasked` until it was asked."""
        if self.answered_at is None and self._silent_since is None:
            return "unasked"
        return self.level.name.lower()

    def answered(self, now: float, clock: float, samples: Samples) -> None:
        """now: seconds since 1970. clock: seconds of a clock that never goes back."""
        self.answered_at, self._silent_since = now, None
        self.recent.take(clock, samples)
        self._about = {**labels_of(samples, NODE), "started_at": _date(one(samples, STARTED))}
        self._draw(troubles(self.recent, self._targets))

    def failed(self, now: float, reason: str) -> None:
        """now: seconds since 1970. reason: why there is no answer."""
        if self._silent_since is None:
            self._silent_since = now
        # What it last answered is of another time: it would be taken for now.
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
    """What it does; None for what is not known of it."""
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
    """Prompt tokens, how many were usable, and the others by cause."""
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
    """Choices of prefill nodes by reason, the mean seconds that they were dearer than the best one,
    and what was held to be usable there that was not, as a share; None without a choice."""
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
    """None where it is none of this age."""
    return seconds if seconds is not None and 0 < seconds < _LAST_DATE else None


def _buckets(recent: RecentSamples, name: str) -> Buckets:
    return {} if recent.gained is None else buckets_of(recent.gained.added, name)


def _spread(buckets: Buckets) -> dict[str, float] | None:
    """The median and the 95th percentile, in seconds."""
    middle, late = quantile(buckets, 0.5), quantile(buckets, 0.95)
    return None if middle is None or late is None else {"p50": middle, "p95": late}


def _hit_names(role: str) -> tuple[str, str, str]:
    return LOOKED_UP if role == PREFILL else ANSWERED


def troubles(recent: RecentSamples, targets: Targets) -> tuple[Trouble, ...]:
    """Of a node that answers."""
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
