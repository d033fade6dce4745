"""A node's recent history, built from events, for its page; its faults among it.

NodeHistory owns every part; each is bounded, so the whole is. Events alone fill it, a recording's
as well as a running node's. Thread rule: the event loop's thread; nothing blocks. Invariant: the
waterfall's totals equal the node's counters of ended requests, and the sum of these requests'
usages.

FaultLedger owns a bounded list of faults and of how each ended, youngest last, and their counts
since the start. It also owns the rooms that may wait for their fence. A room that was lost before
its grant never needs one.
"""

from collections import Counter, deque
from typing import Any

from .events import Event, EventJournal
from .rates import DraftTotals, HitIntervals, PaceHistory, PoolHistory, WhatIf
from .request_history import RequestHistory, SessionHistory

_REMEMBERED = 512

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
        """Add one event. REQUIRES: its `at` is not before the last event's."""
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
        self._entries: deque[dict[str, Any]] = deque(maxlen=_REMEMBERED)
        self._unfenced: dict[int, float] = {}
        self._integrity = "ok"

    def take(self, event: Event) -> None:
        match event:
            case {"kind": "lost", "room": room, "cause": cause, "reason": reason}:
                then = "another node was asked" if event["elsewhere"] else "computed here"
                self._note(event, f"lost.{cause}", f"room {room}", f"{reason}; {then}")
                self._wait(room, event["at"])
            case {"kind": "cancelled", "room": room}:
                self._note(event, "cancelled", f"room {room}", "the client went away")
                self._wait(room, event["at"])
            case {"kind": "fenced", "room": room}:
                began = self._unfenced.pop(room, None)
                if began is not None:
                    took = f"its ids are free again after {event['at'] - began:.3f} s"
                    self._note(event, "fenced", f"room {room}", took)
            case {"kind": "pull_lost", "room": room}:
                self._note(event, "pull_lost", f"room {room}", "its prompt is computed whole")
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
        """Youngest first."""
        return list(self._entries)[: -count - 1 : -1]

    def recent(self, since: float) -> Counter[str]:
        """Counts of the remembered ones that are younger, by kind."""
        counts: Counter[str] = Counter()
        for entry in reversed(self._entries):
            if entry["at"] < since:
                break
            counts[entry["kind"]] += 1
        return counts

    def _note(self, event: Event, kind: str, subject: str, text: str) -> None:
        self.counts[kind] += 1
        self._entries.append({"at": event["at"], "kind": kind, "subject": subject, "text": text})

    def _wait(self, room: int, at: float) -> None:
        self._unfenced[room] = at
        if len(self._unfenced) > _REMEMBERED:
            del self._unfenced[next(iter(self._unfenced))]
