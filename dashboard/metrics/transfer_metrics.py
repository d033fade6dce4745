"""Metrics of transfers between nodes: transfers of prompts, pulls, copied states, lost hand-overs.

All borrow their registry. One thread.

PrefillTransferMetrics: a prefill node's transfers, fed as each ends. PullMetrics: prefixes loaded
by a prefill node from decode nodes instead of being computed. CopiedStateMetrics: states copied
without a waiting request. An ending node leaves states to prefill nodes; a decode node fetches
states. FaultMetrics: lost hand-overs, and the time until their granted pages could be used again.
It owns the transfers waiting for their fence (proof of a stopped writer).
"""

import time
from enum import Enum

from prometheus_client import CollectorRegistry

from tasuki.engine.messages import (
    DrainTargetOutcome,
    FetchOutcome,
    HandoverCancelled,
    HandoverFailed,
    LossCause,
    PullCommitted,
    PullLost,
    StateFetched,
    StateLeft,
    TransferEnded,
    TransferId,
    WriterFenced,
)
from tasuki.utils.signatures import Clock

from .families import FENCE, PREFILL, QUEUE, Instruments
from .request_metrics import prefilled_seconds, queued_seconds


class PrefillTransferMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._ended = made.counter(
            "rooms_ended", "Prompts prefilled for other nodes, by how they ended.", "outcome"
        )
        for cause in (LossCause.STALLED, LossCause.QUEUE_TIMEOUT):
            self._ended.labels(cause.value)
        self._queue = made.seconds(
            "room_queue", "From a transfer's arrival until its prompt was computed.", QUEUE
        )
        self._prefill = made.seconds("room_prefill", "Computing the prompt of a transfer.", PREFILL)

    def observe(self, transfer: TransferEnded) -> None:
        self._ended.labels(_outcome(transfer)).inc()
        self._queue.observe(queued_seconds(transfer.life))
        if transfer.handed_on:
            self._prefill.observe(prefilled_seconds(transfer.life))


def _outcome(transfer: TransferEnded) -> str:
    if transfer.given_up is not None:
        return transfer.given_up.value
    return "handed_on" if transfer.handed_on else "given_up"


_COMMITTED, _LOST = "committed", "lost"


class PullMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._pulls = made.counter(
            "pulls",
            "Pulls of a prompt's beginning from the node that asked, by outcome.",
            "outcome",
        )
        for outcome in (_COMMITTED, _LOST):
            self._pulls.labels(outcome)
        self._tokens = made.counter("pulled_tokens", "Prompt tokens that pulls brought.")
        self._bytes = made.counter("pulled_bytes", "Bytes that pulls brought.")
        self._seconds = made.seconds("pull", "From the ask for a pull to its commit.", PREFILL)

    def observe(self, message: PullCommitted | PullLost) -> None:
        if isinstance(message, PullLost):
            self._pulls.labels(_LOST).inc()
            return
        self._pulls.labels(_COMMITTED).inc()
        self._tokens.inc(message.report.tokens)
        self._bytes.inc(message.report.bytes)
        self._seconds.observe(message.report.seconds)


class _Copies:
    """Counters of states copied in one direction: states by outcome, and the tokens and bytes of
    the arrived states."""

    def __init__(
        self,
        made: Instruments,
        name: str,
        outcomes: type[Enum],
        states: str,
        tokens: str,
        size: str,
    ) -> None:
        """Register the counters. states, tokens, size: help texts of the counters of states, tokens
        and bytes."""
        self._states = made.counter(name, states, "outcome")
        for outcome in outcomes:
            self._states.labels(outcome.value)
        self._tokens = made.counter(f"{name}_tokens", tokens)
        self._bytes = made.counter(f"{name}_bytes", size)

    def observe(self, copied: StateLeft | StateFetched, arrived: Enum) -> None:
        self._states.labels(copied.outcome.value).inc()
        if copied.outcome is arrived:
            self._tokens.inc(copied.tokens)
            self._bytes.inc(copied.bytes)


class CopiedStateMetrics:
    def __init__(self, registry: CollectorRegistry) -> None:
        made = Instruments(registry)
        self._left = _Copies(
            made,
            "states_left",
            DrainTargetOutcome,
            "States that this node, as it drained, was to leave to prefill nodes, by outcome.",
            "Tokens behind which the states stand that prefill nodes took.",
            "Bytes that prefill nodes pulled of such states.",
        )
        self._fetched = _Copies(
            made,
            "states_fetched",
            FetchOutcome,
            "States that this node asked a prefill node for, so that another one may pull them, by "
            "outcome.",
            "Tokens behind which the states stand that came so.",
            "Bytes that came for such states.",
        )

    def observe(self, copied: StateLeft | StateFetched) -> None:
        match copied:
            case StateLeft():
                self._left.observe(copied, DrainTargetOutcome.TAKEN)
            case StateFetched():
                self._fetched.observe(copied, FetchOutcome.FETCHED)


# A moved hand-over was not lost: it is counted with the choices.
_LOSSES = [cause for cause in LossCause if cause is not LossCause.MOVED]
# Rooms lost before a grant are never fenced; they are forgotten after this number of later rooms.
_REMEMBERED = 4096


class FaultMetrics:
    def __init__(self, registry: CollectorRegistry, clock: Clock = time.monotonic) -> None:
        self._clock = clock
        made = Instruments(registry)
        self._lost = made.counter(
            "handovers_lost",
            "Hand-overs that failed, by cause; their prompts went elsewhere or were computed here.",
            "cause",
        )
        for cause in _LOSSES:
            self._lost.labels(cause.value)
        self._cancelled = made.counter(
            "handovers_cancelled",
            "Hand-overs given up: the client went away, or the first token was the answer.",
        )
        self._fences = made.seconds(
            "fence", "From a transfer's loss until its writer was certain to write no more.", FENCE
        )
        self._open: dict[TransferId, float] = {}

    def observe(self, message: HandoverFailed | HandoverCancelled | WriterFenced) -> None:
        match message:
            case HandoverFailed(transfer_id=transfer_id, cause=cause):
                if cause in _LOSSES:
                    self._lost.labels(cause.value).inc()
                self._begin(transfer_id)
            case HandoverCancelled(transfer_id=transfer_id):
                self._cancelled.inc()
                self._begin(transfer_id)
            case WriterFenced(transfer_id=transfer_id):
                began = self._open.pop(transfer_id, None)
                if began is not None:
                    self._fences.observe(self._clock() - began)

    def _begin(self, transfer_id: TransferId) -> None:
        self._open[transfer_id] = self._clock()
        if len(self._open) > _REMEMBERED:
            del self._open[next(iter(self._open))]
