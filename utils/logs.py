"""A daemon's log, and the progress of long work at its start.

Log records are lines for people, or one JSON object a line for machines. A record's extras
(`extra={"request_id": ...}`) become fields of the object, and follow the text. This module owns the
root logger's handler, once a process.

Progress is a bar on a terminal and lines of the log elsewhere. A bar owns the last line of a
terminal until the work is done. Thread rule of a bar: one thread.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TextIO

from tasuki.utils.signatures import Clock

LOG_FORMATS = ("text", "json")
LOG_LEVELS = ("debug", "info", "warning", "error")

_OWN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


def configure_logging(shape: str, level: str) -> None:
    """Write this process's log to stderr alone, without records refused by is_no_hang_up(). shape:
    one of LOG_FORMATS. level: one of LOG_LEVELS."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if shape == "json" else TextLines())
    handler.addFilter(is_no_hang_up)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def writes_json() -> bool:
    """Return True if this process writes its log as JSON."""
    handlers = logging.getLogger().handlers
    return any(isinstance(handler.formatter, JsonLines) for handler in handlers)


def is_no_hang_up(record: logging.LogRecord) -> bool:
    """Return False for gRPC's log record of a caller hanging up during an answer, True for any
    other. Its traceback shows no defect of the node, and any caller could fill the log with it."""
    raised = record.exc_info[0] if record.exc_info else None
    return (
        raised is None or raised.__name__ != "ExecuteBatchError" or record.name.startswith("tasuki")
    )


class TextLines(logging.Formatter):
    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(name)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        extras = "".join(f" {name}={value}" for name, value in _extras(record).items())
        return super().formatMessage(record) + extras


class JsonLines(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        written = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="microseconds")
        line = {
            "time": written,
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_extras(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


def _extras(record: logging.LogRecord) -> dict[str, object]:
    return {name: value for name, value in vars(record).items() if name not in _OWN}


log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]
"""A function called with the progress of long work: (done, whole). done ascends to whole."""

_WIDTH = 30
_PAUSE_SECONDS = 0.05
_LINE_SECONDS = 5.0


def no_progress(done: int, whole: int) -> None:
    """Show no progress. A Progress function."""


def progress_bar(
    name: str,
    stream: TextIO | None = None,
    clock: Clock = time.monotonic,
) -> Progress:
    """Return a function to show progress as a bar. name: name of the work. stream: output; None
    means standard error. If the stream is no terminal, or the log is JSON, progress is a log line
    every five seconds."""
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
