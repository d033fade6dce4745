"""The page's views as JSON values. Pure functions of a history; the page draws, decides
nothing."""

from typing import Any

from .node_history import NodeHistory

_LISTED = 200
_PACE_SECONDS = 60.0
_SESSIONS, _TURNS = 24, 24
"""Bounds on the drawn sessions and on the turns of each, so that a redraw fits into a frame."""


def overview(history: NodeHistory, now: float, seconds: int, points: int) -> dict[str, Any]:
    """The waterfall, drafts, the what-if, both pools, the last minute's pace, and counts of
    requests, sessions and faults."""
    return {
        "at": now,
        "events": history.journal.end,
        "totals": dict(history.hits.totals),
        "hits": history.hits.series(now, seconds, points),
        "drafts": history.drafts.answer(),
        "what_if": history.what_if.answer(),
        "pools": history.pools.last,
        "series": history.pools.series(seconds, points),
        "in_flight": history.requests.in_flight,
        "pace": history.requests.pace(now, _PACE_SECONDS),
        "ended": history.requests.ends,
        "sessions": len(history.sessions),
        "faults": dict(history.faults.counts),
    }


def requests(history: NodeHistory) -> list[dict[str, Any]]:
    return history.requests.latest(_LISTED)


def handovers(history: NodeHistory) -> list[dict[str, Any]]:
    """Ended requests whose hand-over's timeline is known, youngest first, in brief."""
    return [record for record in requests(history) if _timeline(history, record) is not None]


def handover(history: NodeHistory, request: str) -> dict[str, Any] | None:
    """Its whole record, timeline included."""
    record = history.requests.find(request)
    return None if record is None or _timeline(history, record) is None else record


def sessions(history: NodeHistory) -> list[dict[str, Any]]:
    """Youngest first."""
    latest = history.sessions.latest(_SESSIONS)
    return [{**session, "turns": session["turns"][-_TURNS:]} for session in latest]


def faults(history: NodeHistory) -> dict[str, Any]:
    return {"counts": dict(history.faults.counts), "entries": history.faults.latest(_LISTED)}


def evictions(history: NodeHistory) -> list[dict[str, Any]]:
    return list(history.evictions)[: -_LISTED - 1 : -1]


def _timeline(history: NodeHistory, record: dict[str, Any]) -> Any:
    whole = history.requests.find(record["request"]) or record
    transfer = (whole.get("usage") or {}).get("transfer")
    return None if transfer is None else transfer.get("timeline")
