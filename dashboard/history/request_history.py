"""The last requests: what each asked for, its seconds by state, and its usage.

Owns a bounded memory of ended requests by id, which forgets the oldest end first, and the requests
in flight.
"""

from collections import OrderedDict, deque
from statistics import median
from typing import Any

from .events import Event

_REMEMBERED = 1024
_TIMELINES = 128


class RequestHistory:
    def __init__(self) -> None:
        self._in_flight: OrderedDict[str, Event] = OrderedDict()
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._drawn: deque[dict[str, Any]] = deque()
        self.ends = 0
        """How many have ended since the start; a list is stale where this has changed."""

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submitted(self, event: Event) -> None:
        self._in_flight[event["request"]] = event
        if len(self._in_flight) > _REMEMBERED:
            self._in_flight.popitem(last=False)

    def ended(self, event: Event) -> dict[str, Any]:
        """The record of a request that finished, was rejected, or was a room of another node's."""
        name = event["request"] if "request" in event else f"room-{event['room']}"
        submit = self._in_flight.pop(name, None)
        record = {
            "request": name,
            "session": None if submit is None else submit["session"],
            "arrived_at": _arrival(event, submit),
            "ended_at": event["at"],
            **{key: value for key, value in event.items() if key not in ("at", "request")},
        }
        self._ended[name] = record
        self._ended.move_to_end(name)
        self._bound_timelines(record)
        if len(self._ended) > _REMEMBERED:
            self._ended.popitem(last=False)
        self.ends += 1
        return record

    def _bound_timelines(self, record: dict[str, Any]) -> None:
        """Timelines are the larger part of a record by far: fewer are kept."""
        reports = _transfer_reports(record)
        if not any(report.get("timeline") for report in reports.values()):
            return
        self._drawn.append(reports)
        if len(self._drawn) > _TIMELINES:
            for report in self._drawn.popleft().values():
                report["timeline"] = None

    def pace(self, now: float, seconds: float) -> dict[str, Any]:
        """Of the remembered requests that ended within the last `seconds`: how many, the median
        seconds to the first token and of each one after it (None without), and the answers' tokens
        a second."""
        first: list[float] = []
        later: list[float] = []
        tokens, ends = 0, 0
        for record in reversed(self._ended.values()):
            if record["ended_at"] < now - seconds:
                break
            ends += 1
            usage = record.get("usage")
            if usage is not None and usage["time_to_first_token"] is not None:
                first.append(usage["time_to_first_token"])
                tokens += usage["completion_tokens"]
                if usage["completion_tokens"] > 1:
                    after_first = usage["seconds"] - usage["time_to_first_token"]
                    later.append(after_first / (usage["completion_tokens"] - 1))
        return {
            "ended": ends,
            "first_token_seconds": median(first) if first else None,
            "per_token_seconds": median(later) if later else None,
            "tokens_per_second": tokens / seconds,
        }

    def find(self, name: str) -> dict[str, Any] | None:
        return self._ended.get(name)

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Youngest first, without what only one request's view shows."""
        records = list(self._ended.values())[-count:]
        return [_summary(record) for record in reversed(records)]


def _arrival(event: Event, submit: Event | None) -> float:
    if submit is not None:
        return float(submit["at"])
    life = event.get("life") or [{"at": 0.0}]
    return float(event["at"]) - float(life[-1]["at"])


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    reports = _transfer_reports(record)
    if not reports:
        return record
    brief = {
        name: {key: value for key, value in report.items() if key != "timeline"}
        for name, report in reports.items()
    }
    return {**record, "usage": {**record["usage"], **brief}}


def _transfer_reports(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The reports of the record's hand-over and of the pull before it, those that exist."""
    usage = record.get("usage") or {}
    return {name: usage[name] for name in ("transfer", "pulled") if usage.get(name)}
