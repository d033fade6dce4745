"""A leader's followers (the other ranks): their processes, their sockets and their loss."""

import os
import select
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from tasuki.engine.apart.frames import BrokenFrame
from tasuki.engine.messages.types import Message
from tasuki.engine.runner.base import DeviceLost
from tasuki.engine.tiers.copy_job import JobEnd
from tasuki.transfer.lifecycle.heartbeats import HeartbeatTimeout
from tasuki.utils.child_process import Job, start_child_at_once
from tasuki.utils.program import PACKAGE, line_of
from tasuki.utils.signatures import Clock, EndNotice
from tasuki.utils.system import name_this_thread

from . import messages as r
from .collectives import Collectives
from .shared_arenas import AgreedSteps


@dataclass
class RankProcess:
    """A follower's process, seen from its leader.

    Owns the process and this end of its socket. child: the process object if this process started
    it, else None. handle: file descriptor from pidfd_open(2), readable once the process has ended.
    """

    pid: int
    connection: socket.socket
    child: "subprocess.Popen[bytes] | None" = None
    handle: int = field(init=False)

    def __post_init__(self) -> None:
        self.handle = os.pidfd_open(self.pid)

    def kill(self) -> None:
        """Send SIGKILL to the follower, even if it hangs. Later writes to it fail. Idempotent."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        with suppress(OSError):
            self.connection.shutdown(socket.SHUT_RDWR)

    def ended_how(self) -> str:
        """Return a text for the way the process ended: its status or signal, if this process
        started it. REQUIRES: it has ended."""
        status = None if self.child is None else self.child.wait()
        if status is None:
            return "has ended"
        if status < 0:
            return f"was ended by {signal.Signals(-status).name}"
        return f"has ended with status {status}"

    def reap(self, seconds: float) -> bool:
        """Return True if the process has ended within `seconds`. Leave no zombie if it was started
        here."""
        poll = select.poll()
        poll.register(self.handle, select.POLLIN)
        if not poll.poll(seconds * 1000):
            return False
        if self.child is not None:
            self.child.wait()
        return True

    def close(self) -> None:
        self.connection.close()
        os.close(self.handle)


def start_ranks(jobs: Sequence[Job]) -> list[RankProcess]:
    """Start a process for each job (a follower's work); return them in order. If one fails to
    start, end the others. REQUIRES: the calling thread lives as long as the processes should."""
    started: list[RankProcess] = []
    try:
        for job in jobs:
            child, ours = start_child_at_once(f"{PACKAGE}.engine.parallel.rank_main", job)
            started.append(RankProcess(child.pid, ours, child))
    except BaseException:
        for process in started:
            process.kill()
        raise
    return started


_READ_BYTES = 1 << 16
_WORKS = 0.05
"""Part of a heartbeat period, from 0 to 1. A follower with more processor time than this does real
work, not only heartbeats."""
_MEETING_SECONDS = 90.0
"""Seconds until the slowest rank must wait for plans, after this rank is ready to connect."""
_VERDICT_SECONDS = 1.0
"""Seconds to wait for the cause of a loss, after the engine's thread saw an error."""
_END_SECONDS = 5.0


class RankLost(DeviceLost):
    """A rank of this node is gone, or computes different results. Restart the node."""


class _Follower:
    def __init__(
        self, rank: int, process: RankProcess, heartbeat_timeout: HeartbeatTimeout
    ) -> None:
        self.rank = rank
        self.process = process
        self.heartbeat_timeout = heartbeat_timeout
        self.still: HeartbeatTimeout | None = None
        self.last = r.Beat()
        self.reader = r.frame_reader()
        self.slabs: int | None = None
        self.joined = False
        self.plans = 0
        self.kept = b""
        self.staged: str | None = None
        self.sending = threading.Lock()

    @property
    def name(self) -> str:
        return f"rank {self.rank} (process {self.process.pid})"

    def gets_on(self, heartbeat: r.Beat) -> bool:
        """Return True if the follower progressed since its last heartbeat. A long computation
        counts as progress: it is slow, not stuck, and the watchdog limits it."""
        worked = heartbeat.worked - self.last.worked
        return (
            heartbeat.exchanges > self.last.exchanges
            or worked > _WORKS * self.heartbeat_timeout.period
        )


OnCopyEnd = Callable[[int, JobEnd], None]
"""A function called on the reading thread with a copy's transfer number and result."""


class Ranks:
    """The leader's followers: sends messages to them and detects their loss.

    Owns their processes, and one thread to read their messages. Thread rule: send(), sampled() and
    blame() are the engine's thread's. loaded(), join(), joined() and close() belong to the building
    thread. `on_loss` is called once, on the thread with the loss. Invariants: the first loss is the
    reason for the node's end. Every follower is killed with it, so no rank waits for a lost one.
    Every wait is bounded: a dead rank is noticed by its pidfd, a hanging one by its heartbeat
    timeout.
    """

    def __init__(
        self, processes: Sequence[RankProcess], timeout: float, clock: Clock = time.monotonic
    ) -> None:
        """processes: processes of ranks 1, 2 and so on, in order. timeout: longest seconds without
        a heartbeat before the node ends."""
        self._clock = clock
        self._timeout = timeout
        now = clock()
        self._followers = [
            _Follower(rank, process, HeartbeatTimeout(max(timeout, r.START_SECONDS), now))
            for rank, process in enumerate(processes, 1)
        ]
        self._changed = threading.Condition()
        self._reason: str | None = None
        self._on_loss: EndNotice | None = None
        self._collectives: Collectives | None = None
        self._over = 0
        self._closing = False
        self.agreed = AgreedSteps(1 + len(processes))
        self._checksums: dict[int, dict[int, int]] = {}
        self._on_copy: dict[int, OnCopyEnd] = {}
        self._wakes = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._watch, name="tasuki-ranks", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Return the number of ranks, including the leader."""
        return 1 + len(self._followers)

    @property
    def pids(self) -> list[int]:
        """Return the followers' process ids, in rank order."""
        return [follower.process.pid for follower in self._followers]

    def on_loss(self, call: EndNotice) -> None:
        """Set the function called with the reason when a rank is lost. It is called immediately if
        a rank is already lost."""
        with self._changed:
            self._on_loss = call
            reason = self._reason
        if reason is not None:
            call(reason)

    def exchange_by(self, collectives: Collectives) -> None:
        """Set this rank's collectives: the other ranks' exchanges are compared with theirs, and
        their waits end once a rank is lost. Called before any forward."""
        self._collectives = collectives

    def check(self) -> None:
        """Raise RankLost if any rank is lost."""
        with self._changed:
            if self._reason is not None:
                raise RankLost(self._reason)

    def loaded(self) -> list[int]:
        """Wait until all followers have their weights. Return the number of slabs possible on each.
        A loading rank sends heartbeats, so the wait ends. Raises RankLost."""
        self._wait(lambda: all(follower.slabs is not None for follower in self._followers))
        return [follower.slabs or 0 for follower in self._followers]

    def join(self, join: r.Join) -> None:
        """Make all followers connect; the caller must connect next. Raises RankLost."""
        self._send(join)

    def joined(self) -> None:
        """Wait until every follower is ready for plans. End the node if this takes too long. Raises
        RankLost."""
        if not self._wait(
            lambda: all(follower.joined for follower in self._followers), _MEETING_SECONDS
        ):
            self.lose(f"not all ranks have met within {_MEETING_SECONDS:g} s")
            self.check()

    def send(self, plan: bytes) -> None:
        """Send the next plan to every follower. Raises RankLost."""
        self.check()
        self._send(r.RunPlan(plan))

    def stage(self, message: r.StageWeights | r.DropWeights) -> None:
        """Make every follower stage weights, or drop them. From any thread, one at a time. Raises
        RankLost."""
        for follower in self._followers:
            follower.staged = None
        self.check()
        self._send(message)

    def staged(self) -> str:
        """Wait until every follower has ended staging. Return a follower's reason against it; empty
        if there is none. Raises RankLost."""
        self._wait(lambda: all(follower.staged is not None for follower in self._followers))
        refused = [(follower.name, follower.staged) for follower in self._followers]
        return next((f"{name}: {reason}" for name, reason in refused if reason), "")

    def post(self, message: r.TierMessage | r.PictureMessage | r.CommitWeights) -> None:
        """Send a message to every follower, after the plans already sent. Raises RankLost."""
        self.check()
        self._send(message)

    def tell(self, rank: int, message: r.PictureMessage) -> None:
        """Send a message to one follower, as post(). Raises RankLost."""
        self.check()
        self._send_to(self._followers[rank - 1 : rank], message)

    def on_copy(self, tier: int, call: OnCopyEnd) -> None:
        """Set the function called for each copy of this tier ended by a follower. It gets the
        transfer number and the result, on the reading thread."""
        self._on_copy[tier] = call

    @property
    def kept(self) -> list[bytes]:
        """Return kept_of() of each follower's disk: identities of its complete states, sent when it
        joined."""
        return [follower.kept for follower in self._followers]

    def have_run(self, plans: int) -> bool:
        """Return True if every follower has completed `plans` plans."""
        return all(follower.plans >= plans for follower in self._followers)

    def ended(self, number: int) -> None:
        """Record the end of the leader's forward of this plan. The followers must end theirs within
        the timeout."""
        self._over = number + 1

    def sampled(self, number: int, checksum: int) -> None:
        """Record the checksum of the leader's sampled tokens of this plan, for comparison."""
        self._compare(0, number, checksum)

    def blame(self, error: Exception) -> None:
        """End the node after a failed forward of the leader. If a follower is lost within a second,
        its loss is the reported reason."""
        with self._changed:
            self._changed.wait_for(lambda: self._reason is not None, _VERDICT_SECONDS)
        self.lose(f"rank 0: the forward failed: {line_of(error)}")

    def lose(self, reason: str) -> None:
        """End the node: kill every follower. Only the first reason counts. Do nothing during or
        after close(). Idempotent."""
        with self._changed:
            if self._reason is not None or self._closing:
                return
            self._reason = reason
            call = self._on_loss
            self._changed.notify_all()
        for follower in self._followers:
            follower.process.kill()
        if self._collectives is not None:
            self._collectives.abandon()
        if call is not None:
            call(reason)

    def close(self) -> None:
        """End the followers and the reading thread; kill those left after seconds. Idempotent."""
        with self._changed:
            if self._closing:
                return
            self._closing = True
        os.eventfd_write(self._wakes, 1)
        self._thread.join()
        for follower in self._followers:
            try:
                follower.process.connection.settimeout(_END_SECONDS)
                with follower.sending:
                    follower.process.connection.sendall(r.frame(r.EndRank()))
            except OSError:
                follower.process.kill()
        deadline = time.monotonic() + _END_SECONDS
        for follower in self._followers:
            if not follower.process.reap(max(deadline - time.monotonic(), 0.0)):
                follower.process.kill()
                follower.process.reap(_END_SECONDS)
            follower.process.close()
        os.close(self._wakes)

    def _wait(self, holds: Callable[[], bool], seconds: float | None = None) -> bool:
        with self._changed:
            held = self._changed.wait_for(lambda: self._reason is not None or holds(), seconds)
        self.check()
        return held

    def _send(self, message: Message) -> None:
        self._send_to(self._followers, message)

    def _send_to(self, followers: Sequence[_Follower], message: Message) -> None:
        data = r.frame(message)
        for follower in followers:
            try:
                with follower.sending:
                    follower.process.connection.sendall(data)
            except OSError as error:
                self.blame(error)
                self.check()

    def _compare(self, rank: int, number: int, checksum: int) -> None:
        with self._changed:
            found = self._checksums.setdefault(number, {})
            found[rank] = checksum
            if len(found) == len(self):
                del self._checksums[number]
            others = [other for other, theirs in found.items() if theirs != checksum]
        if others:
            self.lose(f"ranks {min(others)} and {rank} drew different tokens in plan {number}")

    def _watch(self) -> None:
        name_this_thread()
        poll = select.poll()
        poll.register(self._wakes, select.POLLIN)
        sockets = {item.process.connection.fileno(): item for item in self._followers}
        ends = {item.process.handle: item for item in self._followers}
        for handle in (*sockets, *ends):
            poll.register(handle, select.POLLIN)
        while not self._closing and self._reason is None:
            period = min(follower.heartbeat_timeout.period for follower in self._followers)
            ready = {handle for handle, _ in poll.poll(period * 1000)}
            now = self._clock()
            # Read the sockets first, because last messages come before the end.
            for handle in ready & sockets.keys():
                if not self._read(sockets[handle], now):
                    poll.unregister(handle)
            for handle in ready & ends.keys():
                follower = ends[handle]
                self.lose(f"{follower.name} {follower.process.ended_how()}")
            for follower in self._followers:
                if follower.heartbeat_timeout.tick(now):
                    limit = follower.heartbeat_timeout.limit
                    self.lose(f"{follower.name} has said nothing for {limit:g} s (--rank-timeout)")
                if follower.still is not None and follower.still.tick(now):
                    limit = follower.still.limit
                    self.lose(
                        f"{follower.name} sends heartbeats, and is no further in a forward "
                        f"for {limit:g} s "
                        "than when this rank began to wait for it (--rank-timeout)"
                    )

    def _waits_for(self, follower: _Follower) -> bool:
        """Return True if this rank waits for the follower: this rank began an exchange, or ended a
        plan, before the follower did."""
        begun = 0 if self._collectives is None else self._collectives.begun
        return follower.last.exchanges < begun or follower.plans < self._over

    def _read(self, follower: _Follower, now: float) -> bool:
        """Read the follower's messages. Return False if no more can come."""
        try:
            data = follower.process.connection.recv(_READ_BYTES)
            for messages in follower.reader.take(data):
                for message in messages:
                    self._take(follower, message)
        except OSError:
            return False  # Its end is seen by its pidfd.
        except BrokenFrame as error:
            self.lose(f"{follower.name} sent what is no frame: {error}")
            return False
        if data:
            follower.heartbeat_timeout.received(now)
        return bool(data)

    def _take(self, follower: _Follower, message: Message) -> None:
        match message:
            case r.Ticked(value, ended):
                self.agreed.report(follower.rank, value, ended)
            case r.Beat():
                gets_on, follower.last = follower.gets_on(message), message
                if follower.still and (gets_on or not self._waits_for(follower)):
                    follower.still.received(self._clock())
            case r.PlanRun(number, checksum):
                follower.plans = number + 1
                if follower.still:
                    follower.still.received(self._clock())
                if checksum is not None:
                    self._compare(follower.rank, number, checksum)
            case r.RankFailed(reason):
                self.lose(f"{follower.name} failed: {reason}")
            case r.Loaded(slabs):
                with self._changed:
                    follower.slabs = slabs
                    self._changed.notify_all()
            case r.WeightsStaged(refused):
                with self._changed:
                    follower.staged = refused
                    self._changed.notify_all()
            case r.CopyEnded(tier, transfer, end):
                self._on_copy[tier](transfer, end)
            case r.Joined(kept):
                with self._changed:
                    follower.joined, follower.kept = True, kept
                    follower.heartbeat_timeout = HeartbeatTimeout(self._timeout, self._clock())
                    follower.still = HeartbeatTimeout(self._timeout, self._clock())
                    self._changed.notify_all()
