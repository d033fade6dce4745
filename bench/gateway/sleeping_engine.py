"""An engine that computes nothing and takes as long: the real tree in ids, one prefill at a time.

Prefills last what a table says, and tokens of an answer a fixed time each; the shortest prefill
comes first and each fourth time the oldest, as engine/scheduling/chunks.py has it of chunks.
A prompt leaves its checkpoints when its prefill ends, a turn its end when it is answered, as an
engine does. Owns the tree and the requests in flight. Thread rule: one event loop's. Invariant:
each request ends once, and then holds nothing.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tasuki.bench.fleet.nodes.prefill_server import OLDEST_EVERY
from tasuki.bench.load.free.tokens import answer_to
from tasuki.engine import messages as m
from tasuki.engine.messages import RequestPhase
from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.pycache._cpp_cache import (
    Allocation,
    CheckpointKind,
    ImpossibleRequest,
    PrefixCache,
)
from tasuki.routing.node_load import PrefillSeconds

from .event_reads import EventReads, EventsOutbox

Outbox = m.TokenOut | m.Finished | m.Rejected | m.StatsReply | m.FlushReply | EventsOutbox


@dataclass
class Arrival:
    """A request at a node. came, begun: on the monotonic clock; begun: its first token, 0 where
    that never came. usable: tokens of its prompt that were not computed."""

    node: int
    request_id: str
    came: float
    begun: float = 0.0
    usable: int = 0


@dataclass
class _Request:
    submit: m.Submit
    arrival: Arrival
    work: float
    phase: RequestPhase = RequestPhase.WAITING
    allocation: Allocation | None = None
    timer: asyncio.TimerHandle | None = None


class SleepingEngine:
    def __init__(
        self,
        node: int,
        tree: PrefixCache,
        seconds: PrefillSeconds,
        token_seconds: float,
        vocabulary: int,
        take: Callable[[Sequence[Outbox]], None],
    ) -> None:
        """token_seconds: of an answer's token. take: EngineClient.take()."""
        self.arrivals: list[Arrival] = []
        self._node = node
        self._tree = tree
        self._seconds = seconds
        self._token_seconds = token_seconds
        self._vocabulary = vocabulary
        self._take = take
        self._loop = asyncio.get_running_loop()
        self._events = EventReads(tree, self._emit)
        self._requests: dict[m.RequestId, _Request] = {}
        self._waiting: list[_Request] = []
        self._prefilling: _Request | None = None
        self._begun = 0

    def post(self, message: m.Inbox) -> None:
        """As an engine's inbox. Raises TypeError for what no gateway asks."""
        match message:
            case m.Submit():
                self._submit(message)
            case m.Abort(request_id):
                self._abort(request_id)
            case m.StatsQuery(query_id) | m.CountersQuery(query_id):
                self._emit(self._stats(query_id))
            case m.FlushCache(query_id):
                self._emit(m.FlushReply(query_id, self._tree.flush()))
                self._events.changed()
            case m.WatchCache() | m.ReadEvents() | m.EndWatch():
                self._events.handle(message)
            case _:
                raise TypeError(f"a sleeping engine has no answer to {type(message).__name__}")

    def _emit(self, *messages: Outbox) -> None:
        self._loop.call_soon(self._take, messages)

    def _submit(self, submit: m.Submit) -> None:
        arrival = Arrival(self._node, submit.request_id, time.monotonic())
        self.arrivals.append(arrival)
        usable = self._tree.match(submit.prompt, salt=submit.salt).usable_tokens
        request = _Request(submit, arrival, self._seconds.between(usable, len(submit.prompt)))
        self._requests[submit.request_id] = request
        self._waiting.append(request)
        self._start()

    def _start(self) -> None:
        """The next prefill, where none runs and there is memory for it."""
        while self._prefilling is None and self._waiting:
            oldest = (self._begun + 1) % OLDEST_EVERY == 0
            waiting = self._waiting
            request = waiting[0] if oldest else min(waiting, key=lambda each: each.work)
            submit = request.submit
            self._tree.advance_to(int(1000 * time.monotonic()))
            try:
                allocation = self._tree.allocate(
                    submit.prompt,
                    salt=submit.salt,
                    capacity_tokens=len(submit.prompt) + submit.sampling.max_new_tokens,
                    working_slots=1,
                )
            except ImpossibleRequest as error:
                waiting.remove(request)
                self._reject(submit.request_id, str(error))
                continue
            if allocation is None:
                return  # Begun again when one ends.
            waiting.remove(request)
            self._begun += 1
            self._prefilling = request
            request.allocation, request.phase = allocation, RequestPhase.PREFILLING
            seconds = self._seconds.between(allocation.match.usable_tokens, len(submit.prompt))
            request.timer = self._loop.call_later(seconds, self._prefilled, request, allocation)
        self._events.changed()

    def _prefilled(self, request: _Request, allocation: Allocation) -> None:
        tree, submit = self._tree, request.submit
        request.arrival.begun = time.monotonic()
        match = allocation.match
        request.arrival.usable = match.usable_tokens
        for planned in plan_checkpoints(
            len(submit.prompt), allocation.cached_tokens, match, submit.marks
        ):
            slot = tree.take_checkpoint_slot(allocation)
            if slot is not None:
                tree.insert(allocation, planned.position, slot, planned.kind)
        request.phase = RequestPhase.DECODING
        seconds = submit.sampling.max_new_tokens * self._token_seconds
        request.timer = self._loop.call_later(seconds, self._answered, request, allocation)
        self._prefilling = None
        self._start()

    def _answered(self, request: _Request, allocation: Allocation) -> None:
        tree, submit = self._tree, request.submit
        answer = islice(
            answer_to(submit.prompt.tolist(), self._vocabulary), submit.sampling.max_new_tokens
        )
        tokens = list(answer)
        tree.append(allocation, np.array(tokens, dtype=np.int32))
        forwarded = len(submit.prompt) + len(tokens) - 1
        slot = allocation.working_slots[0]
        if forwarded > allocation.match.usable_tokens:
            tree.insert(allocation, forwarded, slot, CheckpointKind.TURN_END, "unknown")
        outs = [
            m.TokenOut(submit.request_id, token, 0.0, 1.0, index)
            for index, token in enumerate(tokens)
        ]
        self._end(request, m.FinishReason.LENGTH, outs)

    def _abort(self, request_id: m.RequestId) -> None:
        request = self._requests.get(request_id)
        if request is None:
            return
        if request in self._waiting:
            self._waiting.remove(request)
        if self._prefilling is request:
            self._prefilling = None
        self._end(request, m.FinishReason.ABORT, [])

    def _end(self, request: _Request, reason: m.FinishReason, tokens: Sequence[m.TokenOut]) -> None:
        submit, allocation = request.submit, request.allocation
        del self._requests[submit.request_id]
        if request.timer is not None:
            request.timer.cancel()
        hit = None
        if allocation is not None:
            match = allocation.match
            hit = m.HitBreakdown(
                len(submit.prompt),
                match.kv_tokens,
                match.usable_tokens,
                match.miss_reasons.as_dict(),
                None if match.checkpoint_kind is None else match.checkpoint_kind.value,
            )
            self._tree.release(allocation)
        now = time.monotonic()
        came = request.arrival.came
        first = max(0.0, request.arrival.begun - came)
        usage = m.Usage(
            len(submit.prompt), len(tokens), hit, None, "local", False, first, now - came
        )
        self._emit(*tokens, m.Finished(submit.request_id, reason, usage))
        self._start()

    def _reject(self, request_id: m.RequestId, reason: str) -> None:
        del self._requests[request_id]
        self._emit(m.Rejected(request_id, m.RequestError(m.ErrorKind.TOO_LONG, reason)))

    def _stats(self, query_id: int) -> m.StatsReply:
        stats = self._tree.stats()
        pools = ("free", "working", "tree", "granted", "quarantined", "total", "pinned")
        return m.StatsReply(
            query_id,
            pages={name: getattr(stats.pages, name) for name in pools},
            slots={name: getattr(stats.slots, name) for name in pools},
            slabs={},
            tree={
                "prompt_tokens": stats.prompt_tokens,
                "usable_tokens": stats.usable_tokens,
            },
            lost={},
            requests=dict(Counter(request.phase for request in self._requests.values())),
        )
