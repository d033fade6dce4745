"""`python -m tasuki.model.grammar.trials.server FD`: the process for trying the grammars of a node.

FD: file descriptor of the listening socket. The server reads its settings (a TrialJob) from
standard input. Not for people: a TrialHost starts it, and it ends with the host's process.

Owns the clients' connections and the running children. It has one thread, so fork() is safe. It has
built the token trees, so a forked child has them immediately. The queue (queue.py) decides the
order of trials. Only the selector's call blocks.
"""

import gc
import os
import selectors
import signal
import socket
import struct
import sys
import time
from importlib import import_module
from typing import Any

import msgspec

from tasuki.model.grammar.grammar import GrammarsUnavailable
from tasuki.model.grammar.vocabulary import Vocabulary
from tasuki.utils.bounded_child import BoundedChild
from tasuki.utils.system import FreeMemory, die_with_parent

from .messages import Ask, BrokenFrame, FrameBuffer, Leave, Outcome, Reply, Verdict, frame_of
from .queue import Action, Answer, Asker, Kill, QueueBounds, Source, Start, TrialId, TrialQueue
from .trial import Trees, Try, fork_trial, verdict_of

_LOOK_SECONDS = 0.5
"""Seconds between two checks for trials running for too long."""
_READ_BYTES = 64 << 10
_MOST_UNREAD_BYTES = 1 << 20
"""Largest number of answer bytes waiting for a client to read them. A client with more is
disconnected."""
_MOST_CLIENTS = 256
_CREDENTIALS = struct.Struct("3i")

_FromClient = msgspec.msgpack.Decoder(Ask | Leave)


class TrialJob(msgspec.Struct, frozen=True):
    """Settings of a trial server, sent at its start. tokens, eos_ids: the model's vocabulary.
    try_source: MODULE:NAME of the function (a Try) to run in each trial. cores: number of processor
    cores of this node."""

    tokens: tuple[bytes, ...]
    eos_ids: tuple[int, ...]
    try_source: str
    cores: int


class _Client:
    def __init__(self, number: int, connection: socket.socket) -> None:
        self.number = number
        self.connection = connection
        self.frames = FrameBuffer()
        self.unread = bytearray()


class TrialServer:
    def __init__(
        self, listener: socket.socket, bounds: QueueBounds, trees: Trees, try_source: Try
    ) -> None:
        self._listener = listener
        self._queue = TrialQueue(bounds)
        self._trees = trees
        self._try_source = try_source
        self._selector = selectors.DefaultSelector()
        self._clients: dict[int, _Client] = {}
        self._children: dict[TrialId, BoundedChild] = {}
        self._next_client = 0
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ, self._accept)

    def run(self) -> None:
        """Serve clients until this process is killed."""
        self._wake_for_children()
        while True:
            timeout = _LOOK_SECONDS if self._children else None
            for key, events in self._selector.select(timeout):
                key.data(events)
            self._do(self._queue.overdue(time.monotonic()))

    def _wake_for_children(self) -> None:
        """Make the end of a child process wake the selector."""
        woken, wakes = socket.socketpair()
        woken.setblocking(False)
        wakes.setblocking(False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wakes.fileno(), warn_on_full_buffer=False)

        def reap(events: int) -> None:
            woken.recv(_READ_BYTES)
            self._reap()

        self._wakes = wakes
        self._selector.register(woken, selectors.EVENT_READ, reap)

    def _accept(self, events: int) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError:
            return
        if len(self._clients) >= _MOST_CLIENTS or not _is_own_user(connection):
            connection.close()
            return
        connection.setblocking(False)
        client = _Client(self._next_client, connection)
        self._next_client += 1
        self._clients[client.number] = client
        self._selector.register(
            connection, selectors.EVENT_READ, lambda events: self._serve(client, events)
        )

    def _serve(self, client: _Client, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._write(client)
        if events & selectors.EVENT_READ:
            self._read(client)

    def _read(self, client: _Client) -> None:
        try:
            data = client.connection.recv(_READ_BYTES)
            bodies = client.frames.feed(data)
            messages = [_FromClient.decode(body) for body in bodies]
        except BlockingIOError:
            return
        except (OSError, BrokenFrame, msgspec.MsgspecError, UnicodeDecodeError):
            self._lose(client)
            return
        if not data:
            self._lose(client)
            return
        for message in messages:
            asker = Asker(client.number, message.number)
            now = time.monotonic()
            if isinstance(message, Leave):
                self._do(self._queue.leave(asker, now))
            else:
                source = Source(message.kind, message.source)
                self._do(self._queue.ask(asker, message.caller, source, now))

    def _lose(self, client: _Client) -> None:
        if self._clients.pop(client.number, None) is None:
            return
        self._selector.unregister(client.connection)
        client.connection.close()
        self._do(self._queue.leave_all(client.number, time.monotonic()))

    def _do(self, actions: list[Action]) -> None:
        left = actions
        while left:
            action, *left = left
            match action:
                case Start(trial, source):
                    left += self._start(trial, source)
                case Kill(trial):
                    self._children[trial].kill()
                case Answer(asker, verdict):
                    self._tell(asker, verdict)

    def _start(self, trial: TrialId, source: Source) -> list[Action]:
        try:
            child = fork_trial(self._try_source, self._trees, source)
        except OSError as error:
            busy = Verdict(Outcome.BUSY, f"no process can be started to try it: {error}")
            return self._queue.ended(trial, busy, 0.0, time.monotonic())
        self._children[trial] = child
        self._selector.register(
            child.pipe, selectors.EVENT_READ, lambda events: self._read_answer(child)
        )
        return []

    def _read_answer(self, child: BoundedChild) -> None:
        # A child reaped in this turn of the selector has a closed pipe.
        if not child.is_reaped and not child.read():
            self._selector.unregister(child.pipe)

    def _reap(self) -> None:
        for trial, child in [*self._children.items()]:
            ended = child.reaped()
            if ended is not None:
                del self._children[trial]
                if child.pipe in self._selector.get_map():
                    self._selector.unregister(child.pipe)
                child.close()
                now = time.monotonic()
                self._do(self._queue.ended(trial, verdict_of(ended), ended.cpu_seconds, now))

    def _tell(self, asker: Asker, verdict: Verdict) -> None:
        client = self._clients.get(asker.connection)
        if client is not None:
            client.unread += frame_of(Reply(asker.number, verdict))
            self._write(client)

    def _write(self, client: _Client) -> None:
        try:
            sent = client.connection.send(client.unread)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._lose(client)
            return
        del client.unread[:sent]
        if len(client.unread) > _MOST_UNREAD_BYTES:
            self._lose(client)
            return
        wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if client.unread else 0)
        key = self._selector.get_key(client.connection)
        if key.events != wanted:
            self._selector.modify(client.connection, wanted, key.data)


def _is_own_user(connection: socket.socket) -> bool:
    """Return true if the other end of the connection is a process of this user."""
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(packed)
    return bool(user == os.geteuid())


def _named(name: str) -> Any:
    module, _, attribute = name.partition(":")
    return getattr(import_module(module), attribute)


def _unavailable(reason: str) -> Try:
    """Return a Try (a trial function) with the verdict UNAVAILABLE for every source."""
    return lambda trees, source: Verdict(Outcome.UNAVAILABLE, reason)


def main(argv: list[str]) -> None:
    die_with_parent()
    # The daemon handles a signal to the whole group, and ends this process.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=TrialJob)
    try_source: Try = _named(job.try_source)
    trees = Trees(None, None)
    try:
        trees = Trees.of(Vocabulary(job.tokens, job.eos_ids))
    except GrammarsUnavailable as error:
        try_source = _unavailable(str(error))
    most_running = max(1, job.cores // 2)
    del job
    gc.collect()
    # Pages without writes are shared with every child.
    gc.freeze()
    FreeMemory().give_back()
    listener = socket.socket(fileno=int(argv[0]))
    TrialServer(listener, QueueBounds(most_running), trees, try_source).run()


if __name__ == "__main__":
    main(sys.argv[1:])
