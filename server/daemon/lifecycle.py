"""The requests to stop a daemon, and the line that it writes once it is ready.

Owns the process's signal handlers while a StopRequest is entered. One event loop's thread.
"""

import asyncio
import gc
import json
import os
import signal
import sys
from collections.abc import Callable

from tasuki.utils.service_manager import report_ready, report_stopping

_STDIN = 0
_MIDDLE_BEFORE_FULL = 200
"""Collections of the middle generation, of which a few requests make one, before a full one is
considered; Python's own is 10. Cycles that are garbage and old wait for it: some megabytes."""


class StopRequest:
    """`async with` it around a daemon's life. The first SIGTERM or SIGINT requests a drain. Another
    one skips the grace before the drain, where there is one; the next exits at once."""

    def __init__(
        self, *, exit_with_parent: bool = False, hurry: Callable[[], bool] = lambda: False
    ) -> None:
        """exit_with_parent: the end of stdin requests a drain too, so that no child outlives its
        launcher. hurry: skips the grace, and returns whether there was one."""
        self._exit_with_parent = exit_with_parent
        self._hurry = hurry
        self._signalled = False
        self._asked = asyncio.Event()

    async def __aenter__(self) -> "StopRequest":
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)
        if self._exit_with_parent:
            loop.add_reader(_STDIN, self._on_stdin)
        return self

    async def __aexit__(self, *_: object) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
        if self._exit_with_parent:
            loop.remove_reader(_STDIN)

    async def wait(self) -> None:
        await self._asked.wait()

    def ask(self) -> None:
        self._asked.set()

    def _on_signal(self, number: int) -> None:
        if self._signalled and self._hurry():
            return
        # Also where a change of the role was asked for: it would outlive the signal.
        if self._asked.is_set():
            os._exit(128 + number)
        self._signalled = True
        report_stopping("drains")
        self.ask()

    def _on_stdin(self) -> None:
        if not os.read(_STDIN, 4096):
            asyncio.get_running_loop().remove_reader(_STDIN)
            self.ask()


def announce_ready(address: str, http: str | None = None, handover: str | None = None) -> None:
    """The one line a daemon writes to stdout: {"ready": "HOST:PORT"}, once it takes calls. A
    service manager that waits for it gets a message. http, handover: HOST:PORT of the servers for
    HTTP and for decode nodes, where it has them apart."""
    addresses = {"ready": address, "http": http, "handover": handover}
    known = {name: where for name, where in addresses.items() if where is not None}
    sys.stdout.write(json.dumps(known) + "\n")
    sys.stdout.flush()
    report_ready(", ".join(f"{name} at {where}" for name, where in known.items()))


def spare_collections() -> None:
    """Once, when a daemon stands: what it holds by now stays until its end, and a full collection
    that went through it would hold every thread for a fifth of a second. One that goes through a
    thousand streams takes as long, and by default their number need only grow by a quarter."""
    gc.collect()
    gc.freeze()
    young, middle, _ = gc.get_threshold()
    gc.set_threshold(young, middle, _MIDDLE_BEFORE_FULL)
