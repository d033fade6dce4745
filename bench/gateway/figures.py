"""Figures of a run. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tasuki.model.costs import PrefillFlops
from tasuki.pycache.layout import PAGE_TOKENS

from .gateway_process import EVENT_LAG, LOOKUP, LOOP_DELAY, SELECTIONS, TROUBLE
from .player import UNDER_WAY, Asked
from .run import Look, Ran, Restart
from .settings import GatewaySettings
from .sleeping_engine import Arrival

_WINDOW_SECONDS = 5.0
_STEP_SECONDS = 0.5
_POINTS = 0.03


@dataclass(frozen=True)
class Begun:
    """A turn whose prompt was computed as it was first asked, and that request at its node."""

    asked: Asked
    at: Arrival

    @property
    def arrival_ms(self) -> float:
        return 1e3 * (self.at.came - self.asked.sent)

    @property
    def found_all(self) -> bool:
        """Of the text that it continues, in whole pages."""
        whole: int = (self.asked.continued - 1) // PAGE_TOKENS * PAGE_TOKENS
        return self.at.usable >= whole


def figures(ran: Ran, settings: GatewaySettings, flops: PrefillFlops) -> dict[str, Any]:
    """Of turns that came after the warm-up and before a restart. arrival_ms: from a client's call
    to the node's receipt; the scheduling of three processes is in it."""
    at_node = {each.request_id: each for each in ran.arrivals if each.begun}
    begun = [Begun(asked, at_node[asked.name]) for asked in ran.asked if asked.name in at_node]
    end = settings.restart or settings.seconds
    counted = [each for each in begun if settings.warm_up <= each.asked.due - ran.began < end]
    arrival = [each.arrival_ms for each in counted]
    first = [each.at.begun - each.asked.due for each in counted]
    prompts = sum(each.asked.prompt_tokens for each in counted)
    whole = sum(flops.of(each.asked.prompt_tokens) for each in counted)
    lost = [each for each in ran.asked if each.error not in ("", UNDER_WAY)]
    return {
        "turns": len(counted),
        "turns_all": len(ran.asked),
        "lost_turns": len(lost),
        "errors": sorted({each.error for each in lost})[:5],
        "under_way_at_the_end": sum(each.error == UNDER_WAY for each in ran.asked),
        "asked_again": sum(max(0, each.tries - 1) for each in ran.asked),
        "turns_per_second": len(counted) / (end - settings.warm_up),
        "mean_prompt_tokens": prompts / max(1, len(counted)),
        "ready_seconds": ran.ready_seconds,
        "ready_cpu_seconds": ran.ready_cpu,
        "ready_nodes_cpu_seconds": ran.nodes_cpu,
        "flops_saved": sum(flops.of(each.at.usable) for each in counted) / max(whole, 1.0),
        "hit_rate": sum(each.at.usable for each in counted) / max(prompts, 1),
        "continued": _continued(counted),
        "arrival_ms": _quantiles(arrival),
        "ttft_seconds": _quantiles(first) | {"mean": sum(first) / max(1, len(first))},
        "nodes_used": len({each.at.node for each in counted}),
        "gateway": _gateway(ran.looks, ran.restart),
        "restarted": None if ran.restart is None else _restart(ran.restart, begun),
    }


def _continued(turns: Sequence[Begun]) -> float:
    """Share of the turns that continue a text which found all of its whole pages."""
    following = [each for each in turns if each.asked.continued]
    return sum(each.found_all for each in following) / max(1, len(following))


def _gateway(looks: Sequence[Look], restart: Restart | None) -> dict[str, Any]:
    """Of the life before its restart, or all of it: what smg says of itself and its process."""
    life = [look for look in looks if look.metrics]
    if restart is not None:
        life = [look for look in life if look.at <= restart.killed]
    first, last = life[0], life[-1]
    seconds = last.at - first.at
    requests = _grown(first, last, SELECTIONS)
    cpu = last.cpu - first.cpu
    return {
        "cpu_cores": cpu / seconds,
        "cpu_ms_per_request": 1e3 * cpu / max(1.0, requests),
        "memory_mib": max(look.memory for look in life) / 2**20,
        "requests": requests,
        "blocks": last.blocks,
        "lookup_ms": _of_histogram(first, last, LOOKUP),
        "loop_delay_ms": _of_histogram(first, last, LOOP_DELAY),
        "event_lag_ms": _of_histogram(first, last, EVENT_LAG),
        **{name: last.metrics.get(name, 0.0) for name in TROUBLE},
    }


def _grown(first: Look, last: Look, name: str) -> float:
    return last.metrics.get(name, 0.0) - first.metrics.get(name, 0.0)


def _of_histogram(first: Look, last: Look, name: str) -> dict[str, float]:
    """Upper bounds of the buckets in which the quantiles lie, milliseconds."""
    bounds = sorted(
        (float(key.removeprefix(f"{name}_bucket{{").removesuffix("}")), key)
        for key in last.metrics
        if key.startswith(f"{name}_bucket{{")
    )
    count = _grown(first, last, f"{name}_count")
    found = {"count": count}
    if count:
        found["mean"] = 1e3 * _grown(first, last, f"{name}_sum") / count
    for share in (0.5, 0.99):
        under = (bound for bound, key in bounds if _grown(first, last, key) >= share * count)
        found[f"p{100 * share:g}_at_most"] = 1e3 * next(under, float("inf"))
    return found


def _restart(restart: Restart, begun: Sequence[Begun]) -> dict[str, Any]:
    """Seconds from the kill. converged: from when on, for five seconds, as many of the turns that
    continue a text find it as in the half minute before, less three points."""
    killed = restart.killed
    following = [each for each in begun if each.asked.continued]
    before = [each for each in following if killed - 30 <= each.asked.sent < killed]
    after = sorted((each.asked.sent - killed, each.found_all) for each in following)
    later = [(at, found) for at, found in after if at > 0]
    share = sum(each.found_all for each in before) / max(1, len(before))
    return {
        "blocks_before": restart.blocks,
        "continued_before": share,
        "continued_after": sum(found for _, found in later) / max(1, len(later)),
        "turns_after": len(later),
        "first_sent": min((at for at, _ in later), default=None),
        "registered": _since(restart.registered, killed),
        "index_known": _since(restart.known, killed),
        "index_known_cpu_seconds": restart.cpu,
        "converged": converged(later, share - _POINTS),
    }


def _since(moment: float, killed: float) -> float | None:
    return moment - killed if moment else None


def converged(after: Sequence[tuple[float, bool]], wanted: float) -> float | None:
    """From when on, for five seconds, that share of what was sent found all; None: never. after:
    when each was sent, and whether it did."""
    at, last = 0.0, max((sent for sent, _ in after), default=0.0)
    while at + _WINDOW_SECONDS <= last:
        found = [good for sent, good in after if at <= sent < at + _WINDOW_SECONDS]
        if found and sum(found) / len(found) >= wanted:
            return at
        at += _STEP_SECONDS
    return None


def _quantiles(values: Sequence[float]) -> dict[str, float]:
    ordered = sorted(values)
    if not ordered:
        return {}
    return {
        f"p{100 * share:g}": ordered[min(len(ordered) - 1, int(share * len(ordered)))]
        for share in (0.5, 0.95, 0.99)
    }
