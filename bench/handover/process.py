"""Second processes of a bench, and the values they send over a pipe."""

import multiprocessing as mp
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tasuki.bench.errors import BenchError

_END_SECONDS = 120.0


class Spawned(NamedTuple):
    """A started process with a pipe. name: name used in errors."""

    name: str
    channel: Connection
    pid: int

    def received(self, seconds: float) -> Any:
        """Return the process's next value. Raises BenchError if none arrives within `seconds`, or
        the process has ended."""
        if not self.channel.poll(seconds):
            raise BenchError(f"{self.name} sends nothing for {seconds:.0f} s")
        try:
            return self.channel.recv()
        except EOFError as error:
            raise BenchError(f"{self.name} has ended: see its error above") from error


@contextmanager
def spawned(name: str, main: Callable[..., None], *arguments: Any) -> Iterator[Spawned]:
    """Start a process, until the block ends. main: function called with the process's end of the
    pipe and the arguments. The process is killed if the block raises, or if main does not return
    soon after the block."""
    context = mp.get_context("spawn")
    channel, theirs = context.Pipe()
    process = context.Process(target=main, args=(theirs, *arguments))
    process.start()
    # Otherwise the process's end is not noticed here.
    theirs.close()
    assert process.pid is not None
    try:
        yield Spawned(name, channel, process.pid)
        process.join(_END_SECONDS)
    finally:
        if process.is_alive():
            process.kill()
        process.join()
        channel.close()
