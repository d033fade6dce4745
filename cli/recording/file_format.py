"""A recording: the events of a node, in a file of gzipped JSON lines.

Owns the format. The first line is {"tasuki_recording": 1, "about": {...}}. Every other line is an
event in the form of dashboard/history/events.py, in order of `at`, or has the kind NOT_CONNECTED.
NOT_CONNECTED: the recorder had no connection for the following `seconds`. Events forgotten by the
node meanwhile are missing. A truncated recording is read up to its end, because the recorder may
have been killed.
"""

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

Event = dict[str, Any]
_VERSION = 1
_KEY = "tasuki_recording"
NOT_CONNECTED = "not_connected"


class RecordingError(Exception):
    """The file is not a recording readable by this version. The message names the file and the
    fix."""


class RecordingWriter:
    """A writer of a recording. Use it in `with`; call `add` for each event. Added events are in the
    file after the next flush at the latest."""

    def __init__(self, path: Path, about: dict[str, str]) -> None:
        self._path = path
        self._about = about
        self._lines: IO[str]
        self.count = 0
        """Number of events added to the file."""

    def __enter__(self) -> "RecordingWriter":
        """Create the file. Raises RecordingError."""
        try:
            self._lines = gzip.open(self._path, "wt", encoding="utf-8")
        except OSError as error:
            raise RecordingError(
                f"{self._path} cannot be written ({error.strerror or error}): give --out a file in "
                "a folder of yours"
            ) from error
        self._add({_KEY: _VERSION, "about": self._about})
        return self

    def __exit__(self, *_: object) -> None:
        self._lines.close()

    def add(self, event: Event) -> None:
        self._add(event)
        self.count += 1

    def flush(self) -> None:
        self._lines.flush()

    def _add(self, value: dict[str, Any]) -> None:
        self._lines.write(json.dumps(value, separators=(",", ":")) + "\n")


@dataclass(frozen=True)
class Recording:
    about: dict[str, str]
    events: tuple[Event, ...]

    @classmethod
    def load(cls, path: Path) -> "Recording":
        """Return the recording in the file at `path`, as far as whole. Raises RecordingError."""
        try:
            head, *events = _values(path)
        except OSError as error:
            raise RecordingError(f"{path}: {error}; give a file of `tasuki record`") from error
        except ValueError as error:
            raise RecordingError(
                f"{path}: is no recording: give a file of `tasuki record`"
            ) from error
        if head.get(_KEY) != _VERSION:
            raise RecordingError(
                f"{path}: is of version {head.get(_KEY)}, this reads {_VERSION}: use the tasuki "
                "that recorded it"
            )
        return cls(head["about"], tuple(events))


def _values(path: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        try:
            for line in lines:
                if not line.endswith("\n"):
                    return
                yield json.loads(line)
        except (EOFError, zlib.error):
            return
