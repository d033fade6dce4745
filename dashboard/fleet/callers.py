"""Latency targets of a fleet, and each caller's share of requests within them.

Covers one node and the sum over all nodes. Pure.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from .samples import (
    CALLER_ENDED,
    CALLER_FIRST_TOKEN,
    CALLER_PER_TOKEN,
    CALLER_TARGETS,
    Buckets,
    RecentSamples,
    Samples,
    add_buckets,
    buckets_by,
    by_label,
    observed,
    quantile,
    share_within,
)


@dataclass(frozen=True)
class Targets:
    """Latency targets of a fleet, in seconds. first_token: time from a request's arrival to its
    first token. per_token: mean time a token, over a request's tokens after the first."""

    first_token: float = 2.0
    per_token: float = 0.1


MOST_CALLERS = 64

_CALLER = "caller"


@dataclass
class CallerLoad:
    """Recent requests of one caller. per_minute: ended requests a minute. first_token: histogram of
    the seconds to the first token. per_token: histogram of each request's mean seconds a token
    after the first. outcomes: number of requests with a latency target (from the request or its
    node), by outcome."""

    per_minute: float = 0.0
    first_token: Buckets = field(default_factory=dict)
    per_token: Buckets = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)

    def add(self, other: "CallerLoad") -> None:
        self.per_minute += other.per_minute
        add_buckets(self.first_token, other.first_token)
        add_buckets(self.per_token, other.per_token)
        self.outcomes.update(other.outcomes)


def callers_of(recent: RecentSamples) -> dict[str, CallerLoad]:
    """Return a node's recent loads by caller; empty at first."""
    gained = recent.gained
    if gained is None:
        return {}
    first = buckets_by(gained.added, CALLER_FIRST_TOKEN, _CALLER)
    each = buckets_by(gained.added, CALLER_PER_TOKEN, _CALLER)
    outcomes = _outcomes(gained.added)
    ended = by_label(gained.added, CALLER_ENDED, _CALLER)
    return {
        name: CallerLoad(
            60 * ended.get(name, 0.0) / gained.seconds,
            first.get(name, {}),
            each.get(name, {}),
            outcomes.get(name, Counter()),
        )
        # Some callers have outcomes only, because all their requests are rejected.
        for name in {**ended, **outcomes}
    }


def _outcomes(added: Samples) -> dict[str, Counter[str]]:
    """Return the number of requests with a target by caller's name and outcome. added: the
    counters' gains."""
    found: dict[str, Counter[str]] = {}
    for labels, count in added.get(CALLER_TARGETS, {}).items():
        named = dict(labels)
        if _CALLER in named and count > 0:
            found.setdefault(named[_CALLER], Counter())[named.get("outcome", "")] += count  # type: ignore[assignment]
    return found


def callers(
    nodes: Iterable[Mapping[str, CallerLoad]], targets: Targets, wanted: str
) -> dict[str, Any]:
    """Return the callers as JSON, first those with the lowest share of requests within their
    targets; at most MOST_CALLERS rows. nodes: the callers of each node. wanted: text in the
    caller's name, in lower case; empty: all."""
    known: dict[str, CallerLoad] = {}
    for node in nodes:
        for name, load in node.items():
            known.setdefault(name, CallerLoad()).add(load)
    rows = [_row(name, load, targets) for name, load in known.items() if wanted in name.lower()]
    rows.sort(key=lambda row: (_kept(row), -row["per_minute"], row["caller"]))
    return {
        "targets": {"ttft": targets.first_token, "itl": targets.per_token},
        "known": len(known),
        "matched": len(rows),
        "rows": rows[:MOST_CALLERS],
    }


def _row(name: str, load: CallerLoad, targets: Targets) -> dict[str, Any]:
    first, each = (dict(sorted(part.items())) for part in (load.first_token, load.per_token))
    outcomes = load.outcomes
    return {
        "caller": name,
        "per_minute": load.per_minute,
        "answered": observed(first),
        "ttft": {"p50": quantile(first, 0.5), "p95": quantile(first, 0.95)},
        "itl": {"p50": quantile(each, 0.5), "p95": quantile(each, 0.95)},
        "ttft_kept": share_within(first, targets.first_token),
        "itl_kept": share_within(each, targets.per_token),
        "wanted": sum(outcomes.values()),
        "kept": outcomes["kept"] / sum(outcomes.values()) if outcomes else None,
        "refused": outcomes["refused"] / sum(outcomes.values()) if outcomes else None,
    }


def _kept(row: dict[str, Any]) -> float:
    shares = (row["ttft_kept"], row["itl_kept"], row["kept"])
    return min((share for share in shares if share is not None), default=1.0)
