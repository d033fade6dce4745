"""The prefill nodes of a simulated fleet. Each has the real prefix tree over page ids, one prefill
at a time, and reports of its load.

The shortest prefill comes first, and each fourth time the oldest, like chunks in
engine/scheduling/scheduler.py. A prompt and its answer enter the tree when the prefill ends. The
answer's state is assumed to come back from the decode node; its bytes are not modelled. Virtual
time in seconds never goes back. Thread rule: one thread.
"""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tasuki.engine.scheduling.checkpoints import plan_checkpoints
from tasuki.pycache._cpp_cache import (
    Allocation,
    CheckpointKind,
    ImpossibleRequest,
    PrefixCache,
)
from tasuki.routing.node_load import PrefillSeconds, faded

from .workload import Turn, Workload

Report = tuple[float, float, float]
"""Arguments of NodeLoad.report: seconds until the node is free, time of the report, seconds of
prefill stored in its cache lately. Older work counts less."""


class LoadReports:
    """A node's load reports, taken once a period and delivered after a delay.

    Owns the reports not yet outdated. Between two changes of the node's work its waiting time only
    falls, so one report for each change is kept.
    """

    def __init__(self, period: float, delay: float) -> None:
        """Set up the reports. period: seconds between two reports. delay: seconds until a report is
        delivered."""
        self._period = period
        self._delay = delay
        self._changes: deque[Report] = deque([(0.0, 0.0, 0.0)])  # report time, free time, stored

    def changed(self, now: float, wait: float, stored: float) -> None:
        """Record a change of the node's load. wait: seconds until the node is free. stored: seconds
        of prefill stored in its cache lately."""
        self._forget(now)
        self._changes.append((now, now + wait, stored))

    def latest(self, now: float) -> Report:
        """Return the newest report delivered by the time `now`."""
        at = self._forget(now)
        since, free_at, stored = self._changes[0]
        return max(0.0, free_at - at), at, faded(stored, at - since)

    def _forget(self, now: float) -> float:
        """Return the time of the newest delivered report, and drop older reports."""
        at = max(0.0, (now - self._delay) // self._period * self._period)
        while len(self._changes) > 1 and self._changes[1][0] <= at:
            self._changes.popleft()
        return at


OLDEST_EVERY = 4
_HINTS = {"tool_use": "tool_call", "end_turn": "end_of_turn"}


@dataclass(frozen=True)
class Prompt:
    """A turn sent to a node. came: time of its arrival in the fleet. work: expected seconds of
    prefill. pulled: tokens with KV and state transferred from another prefill node."""

    turn: Turn
    came: float
    work: float
    pulled: int = 0


@dataclass(frozen=True)
class Served:
    """A turn with a completed prefill. came: time of its arrival. ended: end of its prefill.
    usable: prompt tokens found in the cache."""

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
    """One simulated prefill node. Owns its prefix tree and its queue."""

    def __init__(
        self,
        number: int,
        tree: PrefixCache,
        workload: Workload,
        seconds: PrefillSeconds,
        reports: LoadReports,
        free_at: NDArray[np.float64],
    ) -> None:
        """Set up a server. number: the node's index. free_at: time each node becomes idle, [nodes]
        float64; the server updates its own element."""
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
    def transfers(self) -> int:
        """Return the number of prompts at this node, waiting or running."""
        return len(self._waiting) + (self._running is not None)

    def wait(self, now: float) -> float:
        """Return the seconds of prefill still ahead at this node, by the node's own estimate."""
        running = max(0.0, self._running.ends - now) if self._running is not None else 0.0
        return running + self._waiting_work

    def report(self, now: float) -> Report:
        """Return the node's newest load report delivered by the time `now`."""
        return self._reports.latest(now)

    def usable(self, turn: Turn) -> int:
        prompt = self._workload.prompt(turn)
        return self._tree.match(prompt, salt=self._workload.salt(turn)).usable_tokens

    def put(self, prompt: Prompt, now: float) -> float | None:
        """Queue a prompt. Returns the end of its prefill if it starts now, or None if it waits."""
        self._waiting.append(prompt)
        self._waiting_work += prompt.work
        self._stored = faded(self._stored, now - self._stored_at) + prompt.work
        self._stored_at = now
        ends = self._start(now) if self._running is None else None
        self._changed(now)
        return ends

    def end(self, now: float) -> tuple[Served, float | None]:
        """End the running prefill at the time `now`. Returns its result, and the end of the next
        prefill (None if no prompt waits)."""
        running = self._running
        assert running is not None, "a node ends only what it began"
        self._running = None
        if running.allocation is not None:
            self._publish(running.prompt.turn, running.allocation, running.usable)
        ends = self._start(now) if self._waiting else None
        self._changed(now)
        return Served(running.prompt.turn, running.prompt.came, now, running.usable), ends

    def lose(self) -> list[Prompt]:
        """Kill the node, and return its unfinished prompts for other nodes."""
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
        """Store a prefilled prompt and its answer in the tree by the rules of
        bench.replay.player."""
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


class Members:
    """The nodes known to deciders (simulated decode nodes). A dead node remains a member until its
    lease ends."""

    def __init__(self, servers: Sequence[PrefillServer]) -> None:
        self.servers = servers
        self.nodes = list(range(len(servers)))
        self.version = 0
        """Version of the member list: grows by one when a node is dropped."""

    def drop(self, node: int) -> None:
        self.nodes.remove(node)
        self.version += 1

    def besides(self, tried: frozenset[int]) -> Sequence[int]:
        """Return all member nodes except the nodes `tried` already."""
        return [node for node in self.nodes if node not in tried] if tried else self.nodes
