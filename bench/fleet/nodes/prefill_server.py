"""A simulated prefill node: the real tree in ids, and one prefill at a time.

Owns its tree and queue. The shortest prefill comes first and each fourth time the oldest, as
engine/scheduling/chunks.py has it of chunks. What a prompt and its answer leave in the tree
stands when its prefill ends: the answer's state is taken to come back by the return path, whose
bytes are not modelled. Virtual time, seconds; thread rule: one thread.
"""

import math
from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.bench.fleet.workload import Turn, Workload
from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.pycache._cpp_cache import (
    Allocation,
    CheckpointKind,
    ImpossibleRequest,
    PrefixCache,
)
from tasuki.routing.node_load import PrefillSeconds, faded

from .load_reports import LoadReports, Report

OLDEST_EVERY = 4
_HINTS = {"tool_use": "tool_call", "end_turn": "end_of_turn"}


@dataclass(frozen=True)
class Prompt:
    """A turn at a node. came: into the fleet. work: seconds of prefill that were expected. pulled:
    tokens whose KV and state came from another node."""

    turn: Turn
    came: float
    work: float
    pulled: int = 0


@dataclass(frozen=True)
class Served:
    """A turn whose prefill ended. usable: tokens of its prompt that were not computed."""

    turn: Turn
    came: float
    ended: float
    usable: int


@dataclass
class _Running:
    prompt: Prompt
    usable: int
    ends: float
    allocation: Allocation | None


class PrefillServer:
    def __init__(
        self,
        number: int,
        tree: PrefixCache,
        workload: Workload,
        seconds: PrefillSeconds,
        reports: LoadReports,
        free_at: NDArray[np.float64],
    ) -> None:
        """free_at: [nodes], when each will have done what it has; the server keeps its own."""
        self._number = number
        self._tree = tree
        self._workload = workload
        self._seconds = seconds
        self._reports = reports
        self._free_at = free_at
        self._waiting: deque[Prompt] = deque()
        self._waiting_work = 0.0
        self._running: _Running | None = None
        self._begun = 0
        self._stored = 0.0
        self._stored_at = 0.0
        self.alive = True

    @property
    def rooms(self) -> int:
        """Prompts that it has."""
        return len(self._waiting) + (self._running is not None)

    def wait(self, now: float) -> float:
        """Seconds of work, as it estimates them."""
        running = max(0.0, self._running.ends - now) if self._running is not None else 0.0
        return running + self._waiting_work

    def report(self, now: float) -> Report:
        """What has come by report last."""
        return self._reports.latest(now)

    def usable(self, turn: Turn) -> int:
        prompt = self._workload.prompt(turn)
        return self._tree.match(prompt, salt=self._workload.salt(turn)).usable_tokens

    def put(self, prompt: Prompt, now: float) -> float | None:
        """When the prefill ends that begins with it; None where it waits."""
        self._waiting.append(prompt)
        self._waiting_work += prompt.work
        self._stored = faded(self._stored, now - self._stored_at) + prompt.work
        self._stored_at = now
        ends = self._start(now) if self._running is None else None
        self._changed(now)
        return ends

    def end(self, now: float) -> tuple[Served, float | None]:
        """The prefill that runs ended: what it did, and when the next one ends."""
        running = self._running
        assert running is not None, "a node ends only what it began"
        self._running = None
        if running.allocation is not None:
            self._publish(running.prompt.turn, running.allocation, running.usable)
        ends = self._start(now) if self._waiting else None
        self._changed(now)
        return Served(running.prompt.turn, running.prompt.came, now, running.usable), ends

    def lose(self) -> list[Prompt]:
        """It dies: what it had, to be asked elsewhere."""
        self.alive = False
        self._free_at[self._number] = math.inf
        lost = list(self._waiting)
        if self._running is not None:
            lost.insert(0, self._running.prompt)
            if self._running.allocation is not None:
                self._tree.release(self._running.allocation)
        return lost

    def _changed(self, now: float) -> None:
        wait = self.wait(now)
        self._free_at[self._number] = now + wait
        self._reports.changed(now, wait, faded(self._stored, now - self._stored_at))

    def _start(self, now: float) -> float:
        self._begun += 1
        oldest = self._begun % OLDEST_EVERY == 0
        prompt = self._waiting[0] if oldest else min(self._waiting, key=lambda each: each.work)
        self._waiting.remove(prompt)
        self._waiting_work = self._waiting_work - prompt.work if self._waiting else 0.0
        turn = prompt.turn
        request, tokens = self._workload.request(turn), self._workload.tokens(turn)
        self._tree.advance_to(int(now * 1000))
        try:
            allocation = self._tree.allocate(
                tokens[: request.prompt_tokens],
                salt=self._workload.salt(turn),
                capacity_tokens=len(tokens),
                working_slots=1,
            )
        except ImpossibleRequest:
            allocation = None
        usable = prompt.pulled
        if allocation is not None:
            usable = max(usable, allocation.match.usable_tokens)
        ends = now + self._seconds.between(usable, request.prompt_tokens)
        self._running = _Running(prompt, usable, ends, allocation)
        return ends

    def _publish(self, turn: Turn, allocation: Allocation, usable: int) -> None:
        """What bench.replay.player leaves of a request."""
        request, tokens, block = (
            self._workload.request(turn),
            self._workload.tokens(turn),
            self._workload.trace.block_tokens,
        )
        tree, match = self._tree, allocation.match
        known = min(request.prompt_tokens // block, len(request.block_ids)) * block
        end = min(known + 1, request.prompt_tokens)
        for planned in plan_checkpoints(end, allocation.cached_tokens, match, ()):
            slot = tree.take_checkpoint_slot(allocation)
            if slot is not None:
                tree.insert(allocation, planned.position, slot, planned.kind)
        tree.append(allocation, tokens[request.prompt_tokens :])
        forwarded = max(len(tokens) - 1, request.prompt_tokens)
        if forwarded > usable:
            hint = _HINTS.get(request.stop, "unknown")
            slot = allocation.working_slots[0]
            tree.insert(allocation, forwarded, slot, CheckpointKind.TURN_END, hint)
        tree.release(allocation)
