"""A node's recent history for its page: requests, conversations and faults.

RequestHistory owns the requests in flight and a bounded memory of ended ones by id. A record has
the request's fields, its seconds by state and its usage. The first ended request is forgotten
first.

SessionHistory owns a bounded memory of conversations by their labels for operators. Each turn has
its cached, computed and decoded tokens, and the pause before it. RequestHistory's records feed it.
The least recently used session is forgotten first. One thread each.

NodeHistory owns every part; each is bounded, and so is the whole. Only events fill it, from a
recording or a running node. Thread rule: the event loop's thread; nothing blocks. Invariant: the
waterfall's totals equal the node's counters of ended requests, and the sum of these requests'
usages.

FaultLedger owns a bounded list of faults and their ends, the newest last, and their counts since
the start. It also owns the transfers possibly waiting for their fence (proof of a stopped writer).
A transfer lost before its destination was granted never needs one.
"""

from collections import Counter, OrderedDict, deque
from typing import Any

from tasuki.dashboard.metrics.request_metrics import seconds_by_phase
from tasuki.engine.messages import RequestPhase

from .events import Event, EventJournal
from .rates import DraftTotals, HitIntervals, PaceHistory, PoolHistory, WhatIf

_REMEMBERED_REQUESTS = 1024
_TIMELINES = 128
_QUEUED = tuple(str(phase) for phase in RequestPhase if phase.is_queued)


class RequestHistory:
    def __init__(self) -> None:
        self._in_flight: OrderedDict[str, Event] = OrderedDict()
        self._ended: OrderedDict[str, dict[str, Any]] = OrderedDict()
        self._drawn: OrderedDict[str, dict[str, Any]] = OrderedDict()
        """Ended requests with a transfer timeline, by id, oldest first. They are kept longer than
        the rest."""
        self._pictured: OrderedDict[str, dict[str, Any]] = OrderedDict()
        """Ended requests with their pictures one by one, by id, oldest first."""
        self.ends = 0
        """Number of requests ended since the start. A reader's list of ended requests is stale once
        this number has changed."""

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def submitted(self, event: Event) -> None:
        self._in_flight[event["request"]] = event
        if len(self._in_flight) > _REMEMBERED_REQUESTS:
            self._in_flight.popitem(last=False)

    def ended(self, event: Event) -> dict[str, Any]:
        """Add and return the record of a finished or rejected request, or of a transfer for another
        node. Drop the oldest beyond a limit."""
        name = event["request"] if "request" in event else f"room-{event['room']}"
        submit = self._in_flight.pop(name, None)
        record = {
            "request": name,
            "session": None if submit is None else submit["session"],
            "caller": None if submit is None else submit.get("caller"),
            "arrived_at": _arrival(event, submit),
            "ended_at": event["at"],
            "queued_seconds": _queued_seconds(event.get("life") or []),
            **{key: value for key, value in event.items() if key not in ("at", "request")},
        }
        self._ended[name] = record
        self._ended.move_to_end(name)
        self._bound_timelines(record)
        self._bound_pictures(record)
        if len(self._ended) > _REMEMBERED_REQUESTS:
            self._ended.popitem(last=False)
        self.ends += 1
        return record

    def _bound_timelines(self, record: dict[str, Any]) -> None:
        """Count the record's timelines as the newest, and drop those of the oldest record over the
        limit. A timeline is by far the larger part of a record."""
        reports = _transfer_reports(record)
        if not any(report.get("timeline") for report in reports.values()):
            return
        self._drawn.pop(record["request"], None)
        self._drawn[record["request"]] = record
        if len(self._drawn) > _TIMELINES:
            _, oldest = self._drawn.popitem(last=False)
            for report in _transfer_reports(oldest).values():
                report["timeline"] = None

    def _bound_pictures(self, record: dict[str, Any]) -> None:
        """Drop the single pictures of the oldest record over the limit. Their counts stay."""
        if not _pictures(record).get("each"):
            return
        self._pictured.pop(record["request"], None)
        self._pictured[record["request"]] = record
        if len(self._pictured) > _TIMELINES:
            _, oldest = self._pictured.popitem(last=False)
            _pictures(oldest)["each"] = []

    def find(self, name: str) -> dict[str, Any] | None:
        return self._ended.get(name) or self._drawn.get(name)

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Return the records of the newest `count` ended requests, newest first. They lack the
        details shown only for a single request."""
        records = list(self._ended.values())[-count:]
        return [_summary(record) for record in reversed(records)]

    def running(self, count: int) -> list[dict[str, Any]]:
        """Return the newest `count` requests in flight, newest first, with the facts known before
        their end."""
        asked = list(self._in_flight.values())[-count:]
        return [
            {
                "request": submit["request"],
                "session": submit["session"],
                "caller": submit.get("caller"),
                "arrived_at": submit["at"],
                "ended_at": None,
                "prompt_tokens": submit["prompt_tokens"],
            }
            for submit in reversed(asked)
        ]

    def handed_over(self) -> list[dict[str, Any]]:
        """Return summaries of all requests with a remembered hand-over timeline, newest first."""
        return [_summary(record) for record in reversed(self._drawn.values()) if timeline(record)]


def timeline(record: dict[str, Any]) -> Any:
    """Return the timeline of the request's hand-over; None without one, or if it is forgotten."""
    transfer = _transfer_reports(record).get("transfer")
    return None if transfer is None else transfer.get("timeline")


def _arrival(event: Event, submit: Event | None) -> float:
    if submit is not None:
        return float(submit["at"])
    life = event.get("life") or [{"at": 0.0}]
    return float(event["at"]) - float(life[-1]["at"])


def _queued_seconds(life: list[dict[str, Any]]) -> float | None:
    """Return the seconds a request spent in queues; None if the request's phases are not known, or
    it never began."""
    spans = seconds_by_phase(
        str(RequestPhase.WAITING), ((mark["state"], mark["at"]) for mark in life)
    )
    return sum(spans[phase] for phase in _QUEUED) if life else None


def _summary(record: dict[str, Any]) -> dict[str, Any]:
    reports, pictures = _transfer_reports(record), _pictures(record)
    if not reports and not pictures:
        return record
    brief = {
        name: {key: value for key, value in report.items() if key != "timeline"}
        for name, report in reports.items()
    }
    if pictures:
        brief["pictures"] = {**pictures, "each": []}
    return {**record, "usage": {**record["usage"], **brief}}


def _pictures(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record's report of pictures; empty without any."""
    return (record.get("usage") or {}).get("pictures") or {}


def _transfer_reports(record: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the record's transfer reports by name: of its hand-over, and of the pull before it.
    Missing reports are left out."""
    usage = record.get("usage") or {}
    return {name: usage[name] for name in ("transfer", "pulled") if usage.get(name)}


_SESSIONS = 256
_TURNS = 128


class SessionHistory:
    def __init__(self) -> None:
        self._sessions: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()

    def ended(self, record: dict[str, Any]) -> None:
        """Add a turn to the session of an ended request. A rejected request, or one without a
        session, adds none."""
        name, usage = record["session"], record.get("usage")
        if name is None or usage is None:
            return
        turns = self._sessions.setdefault(name, deque(maxlen=_TURNS))
        self._sessions.move_to_end(name)
        turns.append(_turn(record, turns[-1] if turns else None))
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Return the `count` last used sessions with their turns, the last used one first."""
        names = list(self._sessions)[-count:]
        return [{"session": name, "turns": [*self._sessions[name]]} for name in reversed(names)]

    def __len__(self) -> int:
        return len(self._sessions)


def _turn(record: dict[str, Any], before: dict[str, Any] | None) -> dict[str, Any]:
    usage = record["usage"]
    hit = usage["hit"]
    usable = 0 if hit is None else hit["usable_tokens"]
    causes = {} if hit is None else hit["causes"]
    fresh = usage["prompt_tokens"] if hit is None else causes.get("new", 0)
    evicted = causes.get("checkpoint_evicted", 0) + causes.get("kv_evicted", 0)
    return {
        "request": record["request"],
        "arrived_at": record["arrived_at"],
        "ended_at": record["ended_at"],
        "pause": None if before is None else record["arrived_at"] - before["ended_at"],
        "reason": record["reason"],
        "prompt": usage["prompt_tokens"],
        "cached": usable,
        "fresh": fresh,
        "lost_tokens": usage["prompt_tokens"] - usable - fresh,
        "decoded": usage["completion_tokens"],
        "first_token": usage["time_to_first_token"],
        "evicted": evicted,
        "lost": None if hit is None else hit.get("lost"),
    }


_REMEMBERED_FAULTS = 512

_EVICTIONS = 512


class NodeHistory:
    def __init__(self) -> None:
        self.journal = EventJournal()
        self.hits = HitIntervals()
        self.drafts = DraftTotals()
        self.what_if = WhatIf()
        self.pace = PaceHistory()
        self.requests = RequestHistory()
        self.sessions = SessionHistory()
        self.faults = FaultLedger()
        self.pools = PoolHistory()
        self.evictions: deque[dict[str, Any]] = deque(maxlen=_EVICTIONS)

    def apply(self, event: Event) -> None:
        """Add one event to the history, and to its journal. REQUIRES: its `at` is not before the
        last event's."""
        self.journal.add(event)
        self.faults.take(event)
        match event["kind"]:
            case "submit":
                self.requests.submitted(event)
            case "finished":
                usage = event["usage"]
                self._looked_up(event, usage["prompt_tokens"], usage["hit"])
                self.drafts.add(usage)
                record = self.requests.ended(event)
                self.sessions.ended(record)
                self._timed(record, usage)
            case "room":
                self._looked_up(event, event["prompt_tokens"], event["hit"])
                self._timed(self.requests.ended(event), None)
            case "rejected":
                self._timed(self.requests.ended(event), None)
            case "evicted":
                self.evictions.extend({"at": event["at"], **item} for item in event["evictions"])
            case "pools":
                self.pools.add(event)

    def _timed(self, record: dict[str, Any], usage: dict[str, Any] | None) -> None:
        first = None if usage is None else usage["time_to_first_token"]
        later = 0 if usage is None else usage["completion_tokens"] - 1
        per_token = (usage["seconds"] - first) / later if usage and later > 0 else None
        self.pace.add(
            record["ended_at"],
            first_token=first,
            per_token=per_token,
            queued=record["queued_seconds"],
        )

    def _looked_up(self, event: Event, prompt_tokens: int, hit: dict[str, Any] | None) -> None:
        self.hits.add(event["at"], prompt_tokens, hit)
        self.what_if.add(prompt_tokens, hit)


class FaultLedger:
    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._entries: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED_FAULTS)
        self._unfenced: dict[int, float] = {}
        self._integrity = "ok"

    def take(self, event: Event) -> None:
        match event:
            case {"kind": "lost", "room": transfer, "cause": cause, "reason": reason}:
                then = "another node was asked" if event["elsewhere"] else "computed here"
                self._note(event, f"lost.{cause}", f"transfer {transfer}", f"{reason}; {then}")
                self._wait(transfer, event["at"])
            case {"kind": "cancelled", "room": transfer}:
                self._note(event, "cancelled", f"transfer {transfer}", "the client went away")
                self._wait(transfer, event["at"])
            case {"kind": "fenced", "room": transfer}:
                began = self._unfenced.pop(transfer, None)
                if began is not None:
                    took = f"its ids are free again after {event['at'] - began:.3f} s"
                    self._note(event, "fenced", f"transfer {transfer}", took)
            case {"kind": "pull_lost", "room": transfer}:
                self._note(
                    event, "pull_lost", f"transfer {transfer}", "its prompt is computed whole"
                )
            case {"kind": "peers", "prefill_available": available}:
                text = "a prefill node is connected" if available else "no prefill node is left"
                self._note(event, "peers_up" if available else "peers_down", "", text)
            case {"kind": "rejected", "request": request, "error": error}:
                self._note(event, f"rejected.{error['kind']}", request, error["message"])
            case {"kind": "finished", "request": request, "reason": "abort"}:
                self._note(event, "aborted", request, "its client gave it up")
            case {"kind": "pools", "integrity": integrity} if integrity != self._integrity:
                self._integrity = integrity
                self._note(event, "integrity", "", integrity)

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Return the newest `count` faults, newest first."""
        return list(self._entries)[: -count - 1 : -1]

    def recent(self, since: float) -> Counter[str]:
        """Return the number of remembered faults at or after `since`, by kind. since: seconds since
        1970."""
        counts: Counter[str] = Counter()
        for entry in reversed(self._entries):
            if entry["at"] < since:
                break
            counts[entry["kind"]] += 1
        return counts

    def _note(self, event: Event, kind: str, subject: str, text: str) -> None:
        self.counts[kind] += 1
        self._entries.append({"at": event["at"], "kind": kind, "subject": subject, "text": text})

    def _wait(self, transfer_id: int, at: float) -> None:
        self._unfenced[transfer_id] = at
        if len(self._unfenced) > _REMEMBERED_FAULTS:
            del self._unfenced[next(iter(self._unfenced))]
