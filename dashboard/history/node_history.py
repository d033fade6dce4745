"""A node's recent history, built from events, for its page.

Owns every part below; each is bounded, so the whole is. Events alone fill it, a recording's as well
as a running node's. Thread rule: one thread, the event loop's; nothing blocks. Invariant: the
waterfall's totals equal the node's counters of ended requests, and the sum of these requests'
usages.
"""

from collections import deque
from typing import Any

from .draft_totals import DraftTotals
from .event_journal import EventJournal
from .events import Event
from .fault_ledger import FaultLedger
from .hit_intervals import HitIntervals
from .pace_history import PaceHistory
from .pool_history import PoolHistory
from .request_history import RequestHistory
from .session_history import SessionHistory
from .what_if import WhatIf

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
