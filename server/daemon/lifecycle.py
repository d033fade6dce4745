"""The requests to stop a daemon.

Owns the process's signal handlers while a StopRequest is entered. One event loop's thread.
"""

import asyncio
import os
import signal
from collections.abc import Callable

from tasuki.utils.service_manager import report_stopping

_STDIN = 0


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
