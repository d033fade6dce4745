"""What went wrong and how it ended: a bounded list of entries, youngest last.

Owns the entries, their counts since the start, and the rooms that may wait for their fence (one
that was lost before its grant never needs one).
"""

from collections import Counter, deque
from typing import Any

from .events import Event

_REMEMBERED = 512


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
