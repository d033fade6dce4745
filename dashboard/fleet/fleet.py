"""The nodes of a fleet, and what its page shows of them together.

Owns the nodes and half an hour of their sums. One thread. Invariant: what is shown is bounded,
however many nodes there are.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Any

from .callers import Targets, callers
from .fleet_node import PREFILL, FleetNode
from .links import LinkedNode, matrix
from .memory import arenas_use, size_by_tier
from .samples import Buckets, Samples, quantile, together

MOST_ROWS = 100
_POINTS = 360
_MOST_NAMES = 4
"""Of roles and of models; what other hosts say may be anything."""
_COLUMNS = ("output_rate", "ttft_p50", "ttft_p95")

Order = Callable[[FleetNode], Any]


def _largest(field: str, part: str | None = None) -> Order:
    """The largest first, and what is not known last."""

    def key(node: FleetNode) -> tuple[float, str, str]:
        value = node.row[field]
        if part is not None and value is not None:
            value = value[part]
        return (1.0 if value is None else -value, node.name, node.address)

    return key


def _by_hit(node: FleetNode) -> tuple[float, str, str]:
    """The lowest hit rate first: it is what one looks for."""
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
"""How the table of nodes can be sorted."""


class Fleet:
    def __init__(self, targets: Targets | None = None) -> None:
        self.targets = targets or Targets()
        self._nodes: dict[str, FleetNode] = {}
        self._series: deque[tuple[float, dict[str, float | None]]] = deque(maxlen=_POINTS)

    def set_members(self, addresses: Iterable[str]) -> None:
        """Those that are no members any more are forgotten."""
        self._nodes = {
            address: self._nodes.get(address) or FleetNode(address, self.targets)
            for address in addresses
        }

    def answered(self, address: str, now: float, clock: float, samples: Samples) -> None:
        """As FleetNode.answered(); nothing where it is no member any more."""
        if address in self._nodes:
            self._nodes[address].answered(now, clock, samples)

    def failed(self, address: str, now: float, reason: str) -> None:
        if address in self._nodes:
            self._nodes[address].failed(now, reason)

    def mark_time(self, now: float) -> None:
        """Add a point to the series. now: seconds since 1970."""
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
        """The sums over all nodes, and how they went. now: seconds since 1970."""
        columns = {name: [point[name] for _, point in self._series] for name in _COLUMNS}
        return {
            "at": now,
            "targets": {"ttft": self.targets.first_token, "itl": self.targets.per_token},
            "totals": self._totals(),
            "series": {"at": [at for at, _ in self._series], **columns},
        }

    def nodes(self, wanted: str, order: str, offset: int, count: int) -> dict[str, Any]:
        """Rows [offset, offset + count) of those that match. wanted: words, each of which a node's
        name, address, role, model, or level is to contain. order: of ORDERS. REQUIRES: count <=
        MOST_ROWS."""
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
        """As links.matrix(). Of the nodes that answer."""
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
        # A prompt that was handed over was looked up at both ends; its client asked once.
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
    """Those that are not empty, and how many there are of each."""
    return dict(Counter(filter(None, names)).most_common(_MOST_NAMES))


def _sum(rates: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
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
