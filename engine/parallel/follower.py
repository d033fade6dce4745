"""A follower (a rank without the engine): its life, its reports and its watch over the leader."""

import fcntl
import logging
import os
import select
import signal
import socket
import struct
import termios
import threading
import time
import traceback
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from queue import SimpleQueue
from typing import Protocol

from tasuki.engine.forward_plan import decode_plan
from tasuki.engine.messages.types import Message
from tasuki.engine.runner.base import InFlightForward, Runner
from tasuki.transfer.lifecycle.heartbeats import HeartbeatTimeout
from tasuki.utils.program import is_expected, line_of
from tasuki.utils.signatures import Clock, Work
from tasuki.utils.system import name_this_thread

from . import messages as r
from .messages import START_SECONDS, checksum
from .pictures import FollowerRows
from .shared_arenas import Report
from .tiers import FollowerTiers, SendToLeader
from .weights import FollowerWeights

log = logging.getLogger(__name__)

HEARTBEATS_A_TIMEOUT = 10
_LOOKS = 5
"""Number of looks at the socket before its unread data counts as not read by the leader. Some of it
may just have been sent."""
_LOOK_SECONDS = 0.001
_CREDENTIALS = struct.Struct("iII")
_COUNT = struct.Struct("i")


class LeaderWatch:
    """A follower's watch over the leader: it checks if the leader still reads this rank's messages.
    If the leader hangs, they stay unread in the socket.

    Owns a handle of the leader's process. Thread rule: one thread ticks; plans_may_come() from any.
    Invariant: this rank's own pauses do not count as the leader's (HeartbeatTimeout).
    """

    def __init__(
        self, connection: socket.socket, timeout: float, clock: Clock = time.monotonic
    ) -> None:
        """connection: one end of a socket pair made by the leader. timeout: longest seconds a
        computing leader may read nothing. A loading leader may read nothing for at least
        START_SECONDS."""
        self._socket = connection
        self._timeout = timeout
        self._clock = clock
        self.period = timeout / HEARTBEATS_A_TIMEOUT
        self._heartbeat_timeout = HeartbeatTimeout(
            max(timeout, START_SECONDS), clock(), self.period
        )
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.pid: int = _CREDENTIALS.unpack(found)[0]
        self._handle = os.pidfd_open(self.pid)

    def plans_may_come(self) -> None:
        """Use the shorter timeout, because the leader has its weights and all are connected."""
        self._heartbeat_timeout = HeartbeatTimeout(self._timeout, self._clock(), self.period)

    def lost(self) -> float | None:
        """Return the timeout in seconds if the leader has read nothing for this long, else None.
        Called once per period, before a heartbeat is sent."""
        heartbeat_timeout, now = self._heartbeat_timeout, self._clock()
        if self._has_read():
            heartbeat_timeout.received(now)
        return heartbeat_timeout.limit if heartbeat_timeout.tick(now) else None

    def kill(self) -> None:
        """Send SIGKILL to the leader, even if it hangs. The system ends the leader's followers with
        it, and its parent sees its end."""
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._handle, signal.SIGKILL)

    def close(self) -> None:
        os.close(self._handle)

    def _has_read(self) -> bool:
        for look in range(_LOOKS):
            if look:
                time.sleep(_LOOK_SECONDS)
            if not _unread(self._socket):
                return True
        return False


def _unread(connection: socket.socket) -> int:
    """Return the number of sent bytes not yet read by the other end of the socket, as counted by
    the system."""
    found = fcntl.ioctl(connection, termios.TIOCOUTQ, bytes(_COUNT.size))
    return int(_COUNT.unpack(found)[0])


class ReportedResults:
    """The results of a follower's forwards, reported to the leader as each ends, while the next is
    launched.

    Owns one thread to wait for forwards in their order. The follower's own thread launches them and
    calls close(). Invariant: the first error ends the reading of plans, and close() raises it. The
    leader gets the checksum of each plan's sampled tokens, if there are any. If the rank's check or
    the sending raises, nothing more is read from the leader.
    """

    def __init__(self, link: "LeaderLink", rank: "LoadedRank") -> None:
        self._link = link
        self._rank = rank
        self._flying: SimpleQueue[tuple[int, InFlightForward] | None] = SimpleQueue()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="tasuki-results", daemon=True)
        self._thread.start()

    def follow(self, number: int, forward: InFlightForward) -> None:
        """Wait for a launched plan's end on the thread, and report it. number: the plan's."""
        self._flying.put((number, forward))

    def close(self) -> None:
        """Wait until all launched forwards have ended. Raises the thread's error."""
        self._flying.put(None)
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        name_this_thread()
        try:
            while (item := self._flying.get()) is not None:
                number, forward = item
                sampled = forward.result()
                self._rank.check()
                self._link.send(r.PlanRun(number, checksum(sampled) if len(sampled) else None))
        except Exception as error:
            self._error = error
            self._link.stop_reading()


_READ_BYTES = 1 << 18
_END_SECONDS = 0.2


class LeaderGone(Exception):
    """The leader's end of the socket is closed. No other process can give this rank work."""


class LoadedRank(Protocol):
    """One rank's part of the model, loaded to memory."""

    @property
    def slabs(self) -> int:
        """Return the number of the arena's slabs (fixed-size parts) this rank has memory for."""

    def join(self, join: r.Join, report: Report) -> Runner:
        """Connect to the other ranks, and allocate an arena of the agreed number of slabs. report:
        sends this rank's progress to a process waiting for it, if any. Return the rank's runner."""

    def tiers(self, send: SendToLeader) -> FollowerTiers | None:
        """Return the tiers below the rank's arena, after join()."""

    def pictures(self) -> FollowerRows | None:
        """Return the rank's tower and rows, after join(); None without a tower."""

    def weights(self, send: SendToLeader) -> FollowerWeights:
        """Return the follower's half of updates of weights, after join()."""

    @property
    def begun(self) -> int:
        """Return Collectives.begun, the number of exchanges begun, after join(). Any thread."""

    @property
    def kept(self) -> bytes:
        """Return kept_of() of the rank's disk index: identities of its complete states, for the
        message Joined."""

    def check(self) -> None:
        """Check a completed forward. Raises if another rank missed an exchange of it."""


class LeaderLink:
    """The follower's end of the socket to its leader. send() from any thread."""

    def __init__(self, connection: socket.socket, timeout: float) -> None:
        """timeout: longest seconds without heartbeats, see LeaderWatch."""
        self._socket = connection
        self._watch = LeaderWatch(connection, timeout)
        self._rank: LoadedRank | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()

    def send(self, message: Message) -> None:
        """Send a message to the leader. Raises LeaderGone."""
        with self._lock:
            try:
                self._socket.sendall(r.frame(message))
            except OSError as error:
                raise LeaderGone(f"the leader is gone: {error}") from error

    def received(self) -> Iterator[Message]:
        """Yield the leader's messages, in order. Raises LeaderGone if its end is closed,
        BrokenFrame for invalid data."""
        reader = r.frame_reader()
        while True:
            data = self._socket.recv(_READ_BYTES)
            if not data:
                raise LeaderGone("the leader has closed its end")
            for found in reader.take(data):
                yield from found

    def leader_ends(self) -> bool:
        """Return True if the leader is gone, or ends within a moment. Exchanges between ranks fail
        before this socket closes."""
        poll = select.poll()
        poll.register(self._socket, 0)  # Its end alone.
        return bool(poll.poll(_END_SECONDS * 1e3))

    def stop_reading(self) -> None:
        """Stop reading from the leader: received() raises LeaderGone."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RD)

    def heartbeat(self) -> None:
        """Start sending heartbeats to the leader, on a thread of their own. This thread kills the
        leader if the leader hangs."""
        self._heartbeats = threading.Thread(
            target=self._heartbeat, name="tasuki-beats", daemon=True
        )
        self._heartbeats.start()

    def plans_may_come(self, rank: LoadedRank) -> None:
        """Report the rank's number of begun exchanges in heartbeats from now on, and use the
        shorter timeout."""
        self._rank = rank
        self._watch.plans_may_come()

    def close(self) -> None:
        self._ended.set()
        self._heartbeats.join()
        self._watch.close()
        self._socket.close()

    def _heartbeat(self) -> None:
        name_this_thread()
        while not self._ended.wait(self._watch.period):
            silent = self._watch.lost()
            if silent is not None:
                log.error(
                    "a rank ends its node: the leader (process %d) has read nothing for %g s "
                    "(--rank-timeout)",
                    *(self._watch.pid, silent),
                )
                self._watch.kill()
                return
            self._send_heartbeat()

    def _send_heartbeat(self) -> None:
        """Send a heartbeat without waiting. If the socket is full, its waiting data serves as a
        heartbeat."""
        if not self._lock.acquire(blocking=False):
            return  # Something is being sent.
        try:
            # A message this small leaves whole, or not at all.
            with suppress(OSError):  # The reader notices it too.
                exchanges = 0 if self._rank is None else self._rank.begun
                heartbeat = r.Beat(exchanges, time.process_time())
                self._socket.send(r.frame(heartbeat), socket.MSG_DONTWAIT)
        finally:
            self._lock.release()


def follow(connection: socket.socket, load: Work[LoadedRank], timeout: float) -> int:
    """Run a follower: load the model, connect to the other ranks, run plans in their order, end.

    The follower decides nothing. Its work comes in plans. It ends at the leader's request, or if
    the leader is gone. Owns the socket to the leader. Thread rule: one thread launches plans, so
    the next one is on its way to the device while one runs. Another one waits for their ends, a
    third one sends heartbeats. Invariant: any error ends the process, after a line to the leader.
    Returns the exit status of the process. timeout: seconds without heartbeats until the leader
    gives up this rank, or this rank the leader.
    """
    link = LeaderLink(connection, timeout)
    link.heartbeat()
    try:
        rank = load()
        link.send(r.Loaded(rank.slabs))
        # The error of a result is the reason for the end of plans.
        with closing(ReportedResults(link, rank)) as results:
            _run_plans(link, rank, results)
    except LeaderGone as error:
        log.error("a rank ends: %s", error)
        return 1
    except Exception as error:
        if not is_expected(error) and not link.leader_ends():
            traceback.print_exc()
        try:
            link.send(r.RankFailed(line_of(error)))
        except LeaderGone:
            log.error("a rank ends: %s", line_of(error))
        return 1
    finally:
        link.close()
    return 0


def _report(link: LeaderLink, value: int, ended: bool) -> None:
    """Report the step counter's value to the leader. Raises nothing, because the calling thread of
    a GPU rank has no handler for errors. ended: True if a forward ended with this value."""
    with suppress(LeaderGone):  # The reader notices it too.
        link.send(r.Ticked(value, ended))


def _run_plans(link: LeaderLink, rank: LoadedRank, results: ReportedResults) -> None:
    runner: Runner | None = None
    tiers: FollowerTiers | None = None
    pictures: FollowerRows | None = None
    weights: FollowerWeights | None = None
    for message in link.received():
        match message:
            case r.Join():
                runner = rank.join(message, partial(_report, link))
                runner.prepare()
                kept = rank.kept
                tiers, pictures = rank.tiers(link.send), rank.pictures()
                weights = rank.weights(link.send)
                link.plans_may_come(rank)
                link.send(r.Joined(kept))
            case r.RunPlan(data):
                assert runner is not None, "a plan came before the ranks had met"
                plan = decode_plan(data)
                results.follow(plan.number, runner.launch(plan))
            case r.BeginCopy() | r.CancelCopy() | r.EmptyTier():
                assert tiers is not None, "a copy for a rank without tiers"
                tiers.handle(message)
            case (
                r.BeginPicture()
                | r.ForgetPicture()
                | r.RunBlocks()
                | r.ShareRows()
                | r.KeepRows()
                | r.DropRows()
            ):
                assert pictures is not None, "a picture for a rank without a tower"
                pictures.handle(message)
            case r.StageWeights() | r.CommitWeights() | r.DropWeights():
                assert weights is not None, "weights came before the ranks had met"
                weights.handle(message)
            case r.EndRank():
                if tiers is not None:
                    tiers.close()
                return
