"""The progress of long work at start: a bar on a terminal, lines of the log elsewhere.

A bar owns the last line of a terminal until the work is done. One thread.
"""

import logging
import sys
import time
from collections.abc import Callable
from typing import TextIO

from .logs import writes_json

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""Called with (done, whole); done ascends to whole."""

_WIDTH = 30
_PAUSE_SECONDS = 0.05
_LINE_SECONDS = 5.0


def no_progress(done: int, whole: int) -> None:
    """Shows nothing."""


def progress_bar(
    name: str,
    stream: TextIO | None = None,
    clock: Callable[[], float] = time.monotonic,
) -> Progress:
    """stream: standard error where none is given. Where that is no terminal, or the log is for
    machines: a line of the log every five seconds."""
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

    def write(done: int, whole: int) -> None:
        nonlocal shown
        now = clock()
        if done < whole and now - shown >= _LINE_SECONDS:
            shown = now
            log.info("%s: %d of %d after %.0f s", name, done, whole, now - began)

    return show if screen.isatty() and not writes_json() else write
