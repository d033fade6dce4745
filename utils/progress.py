"""The progress of long work at start: a bar on a terminal, nothing where there is none.

A bar owns the last line of a terminal until the work is done. One thread.
"""

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[int, int], None]
"""Called with (done, whole); done ascends to whole."""

_WIDTH = 30
_PAUSE_SECONDS = 0.05


def no_progress(done: int, whole: int) -> None:
    """Shows nothing."""


def progress_bar(
    name: str,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """stream: standard error where none is given. Silent unless it is a terminal."""
    stream = stream or sys.stderr
    return _Bar(name, stream, clock).show if stream.isatty() else no_progress


class _Bar:
    def __init__(self, name: str, stream: TextIO, clock: Callable[[], float]) -> None:
        self._name = name
        self._stream = stream
        self._clock = clock
        self._began = self._shown = clock()

    def show(self, done: int, whole: int) -> None:
        now = self._clock()
        if done < whole and now - self._shown < _PAUSE_SECONDS:
            return
        self._shown = now
        filled = _WIDTH * done // whole
        bar = "#" * filled + "." * (_WIDTH - filled)
        end = f" {now - self._began:.1f} s\n" if done == whole else ""
        self._stream.write(f"\r{self._name:<14}[{bar}] {done}/{whole}{end}")
        self._stream.flush()
