"""A node's record of itself: the history behind its page, and a line of activity in its log.

NodeRecorder keeps the messages of the engine and its hand-overs, and the counters once a second. It
owns the history. Thread rule: the event loop's. `observe` never waits.

ActivityLog writes one line every ten seconds while a node is busy: throughput, load, hit rate,
memory use. It owns the counts since the last line. Thread rule: the event loop's.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from tasuki.dashboard.history.events import Event, PromptBlocks, event_of, pools_event
from tasuki.dashboard.history.node_history import NodeHistory
from tasuki.dashboard.metrics.cache_metrics import arena_use
from tasuki.dashboard.metrics.exposition import Exposition
from tasuki.dashboard.observed import NodeReport, ObservedMessage
from tasuki.engine.messages import (
    Finished,
    HitBreakdown,
    Rejected,
    RequestId,
    RequestPhase,
    StatsReply,
    Submit,
    TransferEnded,
)
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.engine_client import RequestObserver
from tasuki.server.errors import ServerError
from tasuki.server.traces import Tracing
from tasuki.utils.signatures import Clock

log = logging.getLogger(__name__)


def log_ended(message: ObservedMessage) -> None:
    match message:
        case Finished(request_id=request_id, reason=reason, usage=usage):
            cached = 0 if usage.hit is None else usage.hit.usable_tokens
            fields: dict[str, object] = {
                "request_id": request_id,
                "prompt_tokens": usage.prompt_tokens,
                "cached_tokens": cached,
                "completion_tokens": usage.completion_tokens,
                "prefilled_on": usage.prefilled_on,
                "first_token_seconds": round(usage.time_to_first_token, 6),
                "seconds": round(usage.seconds, 6),
            }
            if usage.pictures is not None:
                pictures = usage.pictures
                fields["image_tokens"] = pictures.image_tokens + pictures.video_tokens
            log.info("request ended: %s", reason.value, extra=fields)
        case Rejected(request_id=request_id, error=error):
            log.warning("request refused: %s", error.message, extra={"request_id": request_id})


_SAMPLE_SECONDS = 1.0


AskNode = Callable[[], Awaitable[NodeReport]]
"""A function to ask the engine for the node's current counters. Raises ServerError if the engine
has died."""


class NodeRecorder:
    def __init__(self, clock: Clock) -> None:
        """Set up an empty record. clock: seconds since 1970."""
        self.history = NodeHistory()
        self._clock = clock
        self._last = 0.0
        self._blocks = PromptBlocks()
        self._recordings = 0
        self._generated = 0

    def now(self) -> float:
        """Return seconds since 1970, never less than before, even if the clock is set back."""
        self._last = max(self._last, self._clock())
        return self._last

    def observe(self, message: ObservedMessage) -> None:
        event = event_of(message)
        if self._recordings and isinstance(message, Submit):
            event["blocks"] = self._blocks.names(message)
        self._keep(event)

    def count_tokens(self, count: int) -> None:
        """Count the tokens of an answer, for the history's rates."""
        self._generated += count

    @contextmanager
    def recording_blocks(self) -> Iterator[None]:
        """Add the names of prompts' blocks to submit events, inside `with`. They are many, so they
        are made only while a recording runs."""
        self._recordings += 1
        try:
            yield
        finally:
            self._recordings -= 1

    async def sample(self, ask: AskNode) -> None:
        """Keep a sample of the counters each second until cancelled, or until the engine has died.
        ask: returns the node's current counters."""
        while True:
            try:
                self.keep_sample(await ask())
            except ServerError:
                return
            await asyncio.sleep(_SAMPLE_SECONDS)

    def keep_sample(self, report: NodeReport) -> None:
        self._keep(pools_event(report, self._generated))

    def _keep(self, event: Event) -> None:
        self.history.apply({**event, "at": self.now()})


PERIOD_SECONDS = 10.0
_QUEUED = tuple(phase for phase in RequestPhase if phase.is_queued)


class ActivityLog:
    def __init__(self) -> None:
        self._prompt = 0
        self._usable = 0
        self._output = 0

    def observe(self, message: ObservedMessage) -> None:
        """Count the prompt of an ended, not rejected request, for the next line. On a prefill node,
        count the prompt of an ended transfer."""
        match message:
            case Finished(usage=usage):
                self._count_prompt(usage.prompt_tokens, usage.hit)
            case TransferEnded(prompt_tokens=tokens, hit=hit):
                self._count_prompt(tokens, hit)

    def _count_prompt(self, tokens: int, hit: HitBreakdown | None) -> None:
        if hit is not None:
            self._prompt += tokens
            self._usable += hit.usable_tokens

    def count_tokens(self, count: int) -> None:
        """Count the tokens of an answer, for the next line."""
        self._output += count

    async def run(self, ask: AskNode) -> None:
        """Write lines of activity, none while idle, until cancelled, or until the engine has died.
        ask: returns the node's current counters."""
        begun = time.monotonic()
        while True:
            await asyncio.sleep(PERIOD_SECONDS)
            try:
                stats = (await ask()).stats
            except ServerError:
                return
            now = time.monotonic()
            line = self.line(stats, now - begun)
            begun = now
            if line is not None:
                log.info(line)

    def line(self, stats: StatsReply, seconds: float) -> str | None:
        """Return a line about the activity of the last `seconds`, and reset its counts. Return None
        if no token was counted and no request is in the engine. stats: the current counters. A
        prompt counts once its request has ended."""
        prompt, usable, output = self._prompt, self._usable, self._output
        self._prompt = self._usable = self._output = 0
        alive = sum(stats.requests.values())
        if not (prompt or output or alive):
            return None
        waiting = sum(stats.requests.get(phase, 0) for phase in _QUEUED)
        hit_rate = f"{100 * usable / prompt:.1f}%" if prompt else "-"
        return (
            f"{prompt / seconds:.1f} prompt and {output / seconds:.1f} output tokens/s, "
            f"{alive - waiting} running, {waiting} waiting, "
            f"hit rate {hit_rate}{_memory(stats)}"
        )


def _memory(stats: StatsReply) -> str:
    """Return the use of the arena's memory as text; empty if the arena's size is not known."""
    use = arena_use(stats)
    return "" if use is None else f", {use.words()}"


@dataclass(frozen=True)
class NodeRecords:
    """The records of a node with metrics: each counts the node's messages."""

    exposition: Exposition
    recorder: NodeRecorder
    activity: ActivityLog


class NodeObserver(RequestObserver):
    """Traces, logs and counts the messages seen by the engine's client. The event loop's thread."""

    def __init__(self, tracing: Tracing, records: NodeRecords | None) -> None:
        """Set up the observer. records: None if the node keeps no metrics."""
        self._tracing = tracing
        self._records = records

    def begin(self, request: RequestId, request_context: RequestContext) -> None:
        self._tracing.begin(request, request_context)
        if self._records is not None:
            self._records.exposition.begin(request, request_context.operation)

    def observe(self, message: ObservedMessage) -> None:
        if self._records is not None:
            self._records.exposition.observe(message)
            self._records.recorder.observe(message)
            self._records.activity.observe(message)
        self._tracing.observe(message)
        log_ended(message)

    def count_tokens(self, count: int) -> None:
        if self._records is not None:
            self._records.exposition.count_tokens(count)
            self._records.recorder.count_tokens(count)
            self._records.activity.count_tokens(count)
