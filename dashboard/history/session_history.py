"""Conversations, turn by turn: what was cached, computed and decoded, and the pauses between.

Owns a bounded memory of sessions by their labels for operators, which forgets the one unused
longest first. Fed with records of requests (request_history.py).
"""

from collections import OrderedDict, deque
from typing import Any

_SESSIONS = 256
_TURNS = 128


class SessionHistory:
    def __init__(self) -> None:
        self._sessions: OrderedDict[str, deque[dict[str, Any]]] = OrderedDict()

    def ended(self, record: dict[str, Any]) -> None:
        """Add the turn of an ended request; a request without a session adds none."""
        name, usage = record["session"], record.get("usage")
        if name is None or usage is None:
            return
        turns = self._sessions.setdefault(name, deque(maxlen=_TURNS))
        self._sessions.move_to_end(name)
        turns.append(_turn(record, turns[-1] if turns else None))
        if len(self._sessions) > _SESSIONS:
            self._sessions.popitem(last=False)

    def latest(self, count: int) -> list[dict[str, Any]]:
        """Youngest first, turns included."""
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
