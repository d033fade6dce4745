"""A sender in this process and a receiver in a child process, over a transport chosen by the test
file."""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

from tasuki.transfer.transports.base import TransferState, Transport
from tests.harness.fork_server import forked_peer
from tests.harness.waiting import HANG_SECONDS

Answers = dict[str, Callable[..., object]]


def serve(channel: Connection, transport: Transport, answers: Answers) -> None:
    """Run the child: send the transport's metadata, then answer commands until ("close",).
    ("notes", N) is answered with the first N notifications. A command in `answers` is answered with
    its function's result."""
    channel.send_bytes(transport.metadata())
    notes: list[bytes] = []
    while True:
        # Bytes and endpoints move while notifications are asked for, as a receiver always does.
        while not channel.poll(0.001):
            notes += transport.notifications()
        command, *arguments = channel.recv()
        if command == "close":
            transport.close()
            return
        if command == "notes":
            deadline = time.monotonic() + HANG_SECONDS
            while len(notes) < arguments[0] and time.monotonic() < deadline:
                notes += transport.notifications()
                time.sleep(0.001)
            channel.send(notes)
            notes = []
        else:
            channel.send(answers[command](*arguments))


class PeerWire:
    """A sending transport and its receiving child process. transport: with its memory already
    registered. child: the child's function, ending in serve()."""

    def __init__(self, transport: Transport, child: Callable[[Connection], None]) -> None:
        self.transport = transport
        self.process, self.channel = forked_peer(child)
        assert self.channel.poll(HANG_SECONDS)
        self.metadata = self.channel.recv_bytes()
        self.endpoint = transport.connect(self.metadata)

    def write(self, segments: object, note: bytes) -> None:
        """Write segments to the child's memory, and wait for the end. segments: rows of (local
        byte, remote byte, length). note: its notification."""
        rows = np.array(segments, dtype=np.int64).reshape(-1, 3)
        transfer = self.transport.post(self.endpoint, rows, note)
        deadline = time.monotonic() + HANG_SECONDS
        try:
            while self.transport.poll(transfer) is TransferState.PENDING:
                assert time.monotonic() < deadline, "still pending"
                time.sleep(0.0005)
        finally:
            self.transport.release(transfer)

    def ask(self, *command: object) -> object:
        """Send a command to the child and return its answer. Writes of this process may arrive
        meanwhile."""
        self.channel.send(command)
        deadline = time.monotonic() + HANG_SECONDS
        while not self.channel.poll(0.001):
            self.transport.notifications()
            assert time.monotonic() < deadline, "no answer"
        return self.channel.recv()

    def kill_child(self) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, signal.SIGKILL)
        self.process.join(HANG_SECONDS)

    def close(self) -> None:
        self.transport.close()
        if self.process.is_alive():
            self.channel.send(("close",))
        self.process.join(HANG_SECONDS)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
        self.channel.close()
