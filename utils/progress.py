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
    screen = stream or sys.stderr
    began = shown = clock()

    def show(done: int, whole: int) -> None:
        nonlocal shown
        now = clock()
        if done < whole and now - shown < _PAUSE_SECONDS:
            return
        shown = now
        filled = _WIDTH * done // whole
        bar = "#" * filled + "." * (_WIDTH - filled)
        end = f" {now - began:.1f} s\n" if done == whole else ""
        screen.write(f"\r{name:<14}[{bar}] {done}/{whole}{end}")
        screen.flush()

    return show if screen.isatty() else no_progress
