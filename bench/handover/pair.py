"""The first process's handle on a second one that receives.

Owns the process. Life: a context manager. Thread rule: one thread.
"""

import multiprocessing as mp
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection

from tasuki.bench.errors import BenchError
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.windows.destination import Destination
from tasuki.transfer.windows.send_report import WindowDigest

from .receiving import Close, Expect, Place, SumWords, TakeNotes, Verify, run_receiving

_START_SECONDS = 180.0
_ANSWER_SECONDS = 60.0


class ReceivingPeer:
    def __init__(self, channel: Connection, metadata: bytes) -> None:
        self._channel = channel
        self.metadata = metadata

    def expect(self, room: int, generation: int, destination: Destination) -> None:
        self._ask(Expect(room, generation, destination))

    def verify(self, room: int, generation: int, digests: Sequence[WindowDigest]) -> None:
        """Returns once every window is there and equal."""
        self._ask(Verify(room, generation, tuple(digests)))

    def sum_words(self, first: int, end: int) -> int:
        return int(str(self._ask(SumWords(first, end))))

    def start_taking(self, count: int) -> None:
        """Let it read notifications; taken() returns when that many have come."""
        self._channel.send(TakeNotes(count))

    def taken(self) -> int:
        return int(str(self._answer()))

    def _ask(self, question: object) -> object:
        self._channel.send(question)
        return self._answer()

    def _answer(self) -> object:
        if not self._channel.poll(_ANSWER_SECONDS):
            raise BenchError("the receiving process does not answer")
        try:
            return self._channel.recv()
        except EOFError as error:
            raise BenchError("the receiving process has ended: see its error above") from error

    def close(self) -> None:
        self._channel.send(Close())


@contextmanager
def receiving_peer(layout: CacheLayout, slabs: int, place: Place) -> Iterator[ReceivingPeer]:
    """A process with an arena of `slabs` slabs at `place`; ended at the end."""
    context = mp.get_context("spawn")
    channel, theirs = context.Pipe()
    process = context.Process(
        target=run_receiving, args=(theirs, layout, slabs, place), daemon=True
    )
    process.start()
    theirs.close()
    try:
        if not channel.poll(_START_SECONDS):
            raise BenchError("the receiving process did not start")
        try:
            peer = ReceivingPeer(channel, channel.recv_bytes())
        except EOFError as error:
            raise BenchError("the receiving process has ended: see its error above") from error
        yield peer
        peer.close()
        process.join(_ANSWER_SECONDS)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        channel.close()
