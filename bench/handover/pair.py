"""The first process's handle on a second one that receives.

Owns the process. Life: a context manager. Thread rule: one thread.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar, TypeVarTuple, cast

from tasuki.pycache.layout import CacheLayout

from .process import Spawned, spawned
from .receiving import Place, Receiving, run_receiving

_START_SECONDS = 180.0
_ANSWER_SECONDS = 60.0

Asked = TypeVarTuple("Asked")
Answer = TypeVar("Answer")


class ReceivingPeer:
    def __init__(self, process: Spawned) -> None:
        self._process = process
        self.metadata: bytes = process.received(_START_SECONDS)

    def ask(self, method: Callable[[Receiving, *Asked], Answer], *arguments: *Asked) -> Answer:
        """A method of Receiving, called there. Raises BenchError."""
        self.begin(method, *arguments)
        return cast(Answer, self.answer())

    def begin(self, method: Callable[[Receiving, *Asked], object], *arguments: *Asked) -> None:
        """The same; answer() returns when it is done."""
        self._process.channel.send((method, arguments))

    def answer(self) -> object:
        return self._process.received(_ANSWER_SECONDS)


@contextmanager
def receiving_peer(layout: CacheLayout, slabs: int, place: Place) -> Iterator[ReceivingPeer]:
    """A process with an arena of `slabs` slabs at `place`; ended at the end."""
    arguments = (layout, slabs, place)
    with spawned("the receiving process", run_receiving, *arguments) as process:
        yield ReceivingPeer(process)
        process.channel.send(None)
