"""One turn of an event loop for all that a library's thread has woken it for.

gRPC's completions come from a thread of its own, which writes a byte to a socket for each. Its
reader takes one byte in a turn of the loop, and all completions that are there: the turns for the
other bytes find nothing, and each costs two calls of the system and a round of the selector.
"""

import asyncio
import fcntl
import os
import termios
from array import array
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any


@contextmanager
def shared_turns(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Of readers that are added within: one call for all bytes that have come before it, of which
    it finds the last. REQUIRES: such a reader takes what its bytes stand for whether or not there
    is one for each, and its writer writes a byte behind what it stands for."""
    add_reader = loop.add_reader

    def add(fd: Any, callback: Callable[..., Any], *args: Any) -> None:
        add_reader(fd, partial(_call_once, fd, callback), *args)

    # Of this loop alone: whoever adds the reader offers no other way to its socket.
    loop.add_reader = add  # type: ignore[method-assign]
    try:
        yield
    finally:
        del loop.add_reader  # type: ignore[method-assign]


def _call_once(fd: Any, callback: Callable[..., Any], *args: Any) -> None:
    waiting = array("i", [0])
    fcntl.ioctl(fd, termios.FIONREAD, waiting)
    if waiting[0] > 1:
        os.read(fd if isinstance(fd, int) else fd.fileno(), waiting[0] - 1)
    callback(*args)
