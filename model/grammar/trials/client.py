"""The client side of a node's trial server, the process for trying grammars: its start, its
connections, its verdicts.

TrialHost starts the server at the first connection, and again if the server ends. It owns the
listening socket, the server's process, and a thread to wait for both. Invariants: the server ends
with this object, and with this process. Connections opened during the start are kept by the system
and served afterwards. The socket has an abstract name, so it leaves no file. The name is random,
and the server serves processes of its own user alone.

GrammarTrials owns one process's connection, its thread, and the futures of waiting callers.
Invariants: every future ends within MAX_WAIT_SECONDS. Cancelling a future ends its trial, unless
another future waits for the same source. If the connection is lost, its futures end with the
verdict BUSY, and the next call connects again.

Thread rule: any.
"""

import asyncio
import itertools
import logging
import os
import secrets
import select
import selectors
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress

import msgspec

from tasuki.model.grammar.grammar import (
    GrammarError,
    GrammarKind,
    GrammarsBusy,
    GrammarsUnavailable,
)
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.utils.bounded_cache import BoundedCache
from tasuki.utils.system import name_this_thread

from .messages import Ask, BrokenFrame, FrameBuffer, Leave, Outcome, Reply, Verdict, frame_of
from .server import TrialJob

log = logging.getLogger(__name__)

_SERVER = "tasuki.model.grammar.trials.server"
TRY_SOURCE = "tasuki.model.grammar.trials.trial:tried"
_BACKLOG = 256
_REST_SECONDS = 0.5
"""Least number of seconds between two starts of the server, if the first one ended by itself."""


class TrialHost:
    def __init__(self, vocabulary: Vocabulary, try_source: str = TRY_SOURCE) -> None:
        """vocabulary: the model's vocabulary. try_source: MODULE:NAME of the function (a Try) to
        run in each trial."""
        cores = len(os.sched_getaffinity(0))
        self._job = TrialJob(vocabulary.tokens, vocabulary.eos_ids, try_source, cores)
        self._lock = threading.Lock()
        self._watch: _Watch | None = None
        self._address = ""

    def open(self) -> str:
        """Return the address of the trial server, and accept connections from now on."""
        with self._lock:
            if self._watch is None:
                listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                self._address = f"\0tasuki-trials-{secrets.token_hex(16)}"
                listener.bind(self._address)
                listener.listen(_BACKLOG)
                self._watch = _Watch(listener, self._job)
                weakref.finalize(self, self._watch.stop)
            return self._address

    def close(self) -> None:
        """End the trial server's process. Later connections are not accepted."""
        with self._lock:
            if self._watch is not None:
                self._watch.stop()


class _Watch:
    """The thread to start and watch the trial server. It has no reference to its TrialHost, so the
    host can be garbage-collected."""

    def __init__(self, listener: socket.socket, job: TrialJob) -> None:
        self._listener = listener
        self._job = job
        self._woken, self._wakes = socket.socketpair()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stops = False
        self._thread = threading.Thread(target=self._run, name="tasuki-trials", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stop the watching thread and the trial server. Return once it has ended. Idempotent."""
        with self._lock:
            if self._stops:
                return
            self._stops = True
            self._wakes.send(b".")
            if self._process is not None:
                self._process.kill()
        self._thread.join()
        for end in (self._listener, self._woken, self._wakes):
            end.close()

    def _run(self) -> None:
        name_this_thread()
        while True:
            select.select([self._listener, self._woken], [], [])
            began = time.monotonic()
            with self._lock:
                if self._stops:
                    return
                self._process = self._started()
            if self._process is not None:
                self._give_job(self._process)
                status = self._process.wait()
                with self._lock:
                    if self._stops:
                        return
                log.warning("the process that tries grammars has ended with status %s", status)
            self._rest(began)

    def _started(self) -> "subprocess.Popen[bytes] | None":
        """Start the trial server. Return None if the system cannot start a process now."""
        try:
            # The system ends the process when the starting thread ends: this one.
            return subprocess.Popen(
                [sys.executable, "-m", _SERVER, str(self._listener.fileno())],
                pass_fds=[self._listener.fileno()],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
            )
        except OSError as error:
            log.warning("the process that tries grammars cannot be started: %s", error)
            return None

    def _give_job(self, process: "subprocess.Popen[bytes]") -> None:
        assert process.stdin is not None
        try:
            with process.stdin as job:
                job.write(msgspec.msgpack.encode(self._job))
        except OSError:
            # The process has ended already, and is waited for next.
            return

    def _rest(self, began: float) -> None:
        left = began + _REST_SECONDS - time.monotonic()
        if left > 0:
            select.select([self._woken], [], [], left)


MAX_WAIT_SECONDS = 60.0
DRAINS = "this node is draining; try another"
_REMEMBERED_BYTES = 4 << 20
_READ_BYTES = 64 << 10
_PATIENCE = Verdict(
    Outcome.BUSY,
    f"the grammar was not tried within {MAX_WAIT_SECONDS:g} s: ask again, or another node",
)
_LOST = Verdict(Outcome.BUSY, "the process that tries grammars has ended: ask again")
_NO_TEXT = Verdict(Outcome.REFUSED, "holds half of a character: send valid Unicode")

_read_reply = msgspec.msgpack.Decoder(Reply)


def outcome_raised(verdict: Verdict) -> None:
    """Raise the verdict's error (GrammarError, GrammarsBusy or GrammarsUnavailable). Do nothing if
    the grammar passed its trial."""
    match verdict.outcome:
        case Outcome.REFUSED:
            raise GrammarError(verdict.reason)
        case Outcome.BUSY:
            raise GrammarsBusy(verdict.reason)
        case Outcome.UNAVAILABLE:
            raise GrammarsUnavailable(verdict.reason)


_Verdicts = BoundedCache[tuple[GrammarKind, str], Verdict]


class GrammarTrials:
    def __init__(self, address: Callable[[], str]) -> None:
        """address: function returning the trial server's address."""
        self._address = address
        self._remembered: _Verdicts = BoundedCache(_REMEMBERED_BYTES)
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self._closed: Verdict | None = None

    @classmethod
    def of(cls, vocabulary: Vocabulary, try_source: str = TRY_SOURCE) -> "GrammarTrials":
        """Return a client with a trial server of its own. try_source: see TrialHost."""
        host = TrialHost(vocabulary, try_source)
        return cls(host.open)

    @property
    def address(self) -> str:
        """Return the trial server's address, for other processes of this node."""
        return self._address()

    def verdict(self, caller: str, kind: GrammarKind, source: str) -> "Future[Verdict]":
        """Return the future verdict on a grammar source: a remembered one, or a new trial's.
        Without a server it is UNAVAILABLE. caller: name of the client charged for the trial."""
        known = self._remembered.get((kind, source)) or self._closed
        future: Future[Verdict] = Future()
        if known is None and not _is_text(source):
            known = _NO_TEXT
        if known is not None:
            future.set_result(known)
            return future
        try:
            link = self._connected()
        except OSError as error:
            future.set_result(
                Verdict(Outcome.UNAVAILABLE, f"the process that tries grammars: {error}")
            )
            return future
        link.ask(future, caller, kind, source)
        return future

    async def check(self, caller: str, kind: GrammarKind, source: str) -> None:
        """Compile a grammar in the trial process, or recall its verdict, and wait for it. Raises
        GrammarError for a rejected grammar, GrammarsBusy, GrammarsUnavailable."""
        outcome_raised(await asyncio.wrap_future(self.verdict(caller, kind, source)))

    def warm_up(self) -> None:
        """Start the trial server before the first grammar. Do nothing if it is unreachable."""
        try:
            self._connected()
        except OSError:
            # The first grammar tries again, and reports the error.
            return

    def give_up(self, reason: str) -> None:
        """End every trial awaited by this process with GrammarsBusy. reason: text for the callers.
        Later calls begin new trials."""
        with self._lock:
            link = self._link
        if link is not None:
            link.give_up(Verdict(Outcome.BUSY, reason))

    def close(self, reason: str) -> None:
        """End every waiting trial as give_up() does, and begin no new trials. Later calls get a
        remembered verdict, or GrammarsBusy with this reason."""
        self._closed = Verdict(Outcome.BUSY, reason)
        self.give_up(reason)

    def _connected(self) -> "_Link":
        with self._lock:
            if self._link is None or self._link.is_lost:
                self._link = _Link(self._address(), self._remembered)
            return self._link


class _Waiting:
    def __init__(self, future: "Future[Verdict]", kind: GrammarKind, source: str) -> None:
        self.future = future
        self.kind = kind
        self.source = source
        self.until = time.monotonic() + MAX_WAIT_SECONDS


class _Link:
    """One connection to the trial server. Its own thread reads and writes; no caller blocks."""

    def __init__(self, address: str, remembered: _Verdicts) -> None:
        """remembered: cache for final verdicts. Raises OSError if the server's socket does not
        exist any more."""
        self._remembered = remembered
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.connect(address)
        except OSError:
            self._socket.close()
            raise
        self._socket.setblocking(False)
        self._woken, self._wakes = os.pipe()
        os.set_blocking(self._wakes, False)
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, _Waiting] = {}
        self._unsent = bytearray()
        self.is_lost = False
        threading.Thread(target=self._run, name="tasuki-trials", daemon=True).start()

    def ask(self, future: "Future[Verdict]", caller: str, kind: GrammarKind, source: str) -> None:
        number = next(self._numbers)
        frame = frame_of(Ask(number, caller, kind, source))
        with self._lock:
            is_lost = self.is_lost
            if not is_lost:
                self._waiting[number] = _Waiting(future, kind, source)
                self._unsent += frame
                self._wake()
        if is_lost:
            future.set_result(_LOST)
            return
        future.add_done_callback(lambda done: self._left(number) if done.cancelled() else None)

    def give_up(self, verdict: Verdict) -> None:
        with self._lock:
            numbers = [*self._waiting]
        for number in numbers:
            self._end(number, verdict)

    def _left(self, number: int) -> None:
        with self._lock:
            if self._waiting.pop(number, None) is not None and not self.is_lost:
                self._unsent += frame_of(Leave(number))
                self._wake()

    def _end(self, number: int, verdict: Verdict) -> None:
        """End the wait for one verdict from this side, with another verdict, if it still lasts. The
        server is asked to stop the trial."""
        with self._lock:
            waiting = self._waiting.get(number)
        if waiting is None:
            return
        self._left(number)
        _set(waiting.future, verdict)

    def _remember(self, waiting: _Waiting, verdict: Verdict) -> None:
        if verdict.is_final:
            source = waiting.source
            cost = 4 * len(source) + len(verdict.reason)
            self._remembered.put((waiting.kind, source), verdict, cost)

    def _wake(self) -> None:
        try:
            os.write(self._wakes, b".")
        except BlockingIOError:
            # The thread has been woken already.
            return

    def _run(self) -> None:
        name_this_thread()
        frames = FrameBuffer()
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._socket, selectors.EVENT_READ)
                selector.register(self._woken, selectors.EVENT_READ)
                while self._turn(selector, frames):
                    pass
        except (OSError, BrokenFrame, msgspec.MsgspecError) as error:
            log.warning("the connection to the process that tries grammars: %s", error)
        finally:
            self._lose()

    def _turn(self, selector: selectors.BaseSelector, frames: FrameBuffer) -> bool:
        """Handle the next events of the connection. Return true if the connection is still open."""
        for key, events in selector.select(self._patience()):
            if key.fileobj == self._woken:
                os.read(self._woken, _READ_BYTES)
            elif events & selectors.EVENT_READ:
                data = self._socket.recv(_READ_BYTES)
                if not data:
                    return False
                for body in frames.feed(data):
                    self._take(_read_reply.decode(body))
        with self._lock:
            if self._unsent:
                with suppress(BlockingIOError):
                    del self._unsent[: self._socket.send(self._unsent)]
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if self._unsent else 0)
        selector.modify(self._socket, wanted)
        self._end_overdue()
        return True

    def _patience(self) -> float | None:
        with self._lock:
            first = min((each.until for each in self._waiting.values()), default=None)
        return None if first is None else max(0.0, first - time.monotonic())

    def _end_overdue(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [number for number, each in self._waiting.items() if each.until <= now]
        for number in late:
            self._end(number, _PATIENCE)

    def _take(self, reply: Reply) -> None:
        with self._lock:
            waiting = self._waiting.pop(reply.number, None)
        if waiting is not None:
            self._remember(waiting, reply.verdict)
            _set(waiting.future, reply.verdict)

    def _lose(self) -> None:
        with self._lock:
            self.is_lost = True
            waiting = [*self._waiting.values()]
            self._waiting.clear()
            self._socket.close()
            os.close(self._woken)
            os.close(self._wakes)
        for each in waiting:
            _set(each.future, _LOST)


def _set(future: "Future[Verdict]", verdict: Verdict) -> None:
    """Set the future's result, unless its caller has cancelled it meanwhile."""
    if future.set_running_or_notify_cancel():
        future.set_result(verdict)


def _is_text(source: str) -> bool:
    try:
        source.encode()
    except UnicodeEncodeError:
        return False
    return True
