"""`tasuki record`: a recording of a node's events in a file, until interrupted.

Waits for a silent node, and reconnects to a restarted one. The file and the last line report the
time without connection.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.utils.flags import parse_config
from tasuki.utils.options import option
from tasuki.utils.signatures import Clock

from .dashboard_stream import HttpTarget
from .file_format import NOT_CONNECTED, RecordingWriter

_FLUSH_SECONDS = 5.0
_RETRY_SECONDS = 1.0


@dataclass(frozen=True)
class RecordConfig(HttpTarget):
    out: str = option("tasuki-recording.jsonl.gz", "output file; an existing file is replaced")
    seconds: float = option(0.0, "stop after so long; 0: when interrupted")
    blocks: bool = option(
        False, "keep prompts' blocks as anonymous hashes too, for `tasuki trace-export`"
    )

    def __post_init__(self) -> None:
        if not 0 <= self.seconds < float("inf"):
            raise ValueError(f"seconds must be 0 or more, not {self.seconds}")


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki record", "What happens at a node, in a file.", argv, RecordConfig)
    about = next(config.values("/debug/stream"))["about"]
    with RecordingWriter(Path(config.out), about) as writer, suppress(KeyboardInterrupt):
        recorder = Recorder(config, writer)
        recorder.run()
    gone = ""
    if recorder.gaps:
        gone = f"; not connected for {sum(recorder.gaps):.1f} s, {len(recorder.gaps)} times"
    print(f"{recorder.count} events in {config.out}{gone}", file=sys.stderr)
    return 0


@dataclass
class Recorder:
    """A recorder of a node's events; call run() once. count: number of events kept. gaps: length in
    seconds of each time without a connection."""

    config: RecordConfig
    writer: RecordingWriter
    clock: Clock = time.monotonic
    count: int = 0
    gaps: list[float] = field(default_factory=list)
    _last: "_LastEvents" = field(default_factory=lambda: _LastEvents())
    _flushed: float = 0.0

    def run(self) -> None:
        """Record until the configured time, if any, is over, and reconnect. Raises ClientError if a
        node refuses, at the first connection or later."""
        import grpc

        from tasuki.client.errors import ClientError

        began = self._flushed = self.clock()
        lost: float | None = None
        while True:
            try:
                with closing(self.config.followed(self._path)) as values:
                    for value in values:
                        self._found_again(lost)
                        lost = None
                        if value is not None:
                            self._keep(value)
                        if self._is_over(began):
                            return
            except ClientError as error:
                if error.status is not grpc.StatusCode.UNAVAILABLE:
                    raise
                if lost is None:
                    lost = self.clock()
                    print(f"{error}; trying again", file=sys.stderr, flush=True)
            if self._is_over(began):
                self._found_again(lost)
                return
            time.sleep(_RETRY_SECONDS)

    @property
    def _path(self) -> str:
        # From the first event remembered by the node: the recording then shows its past too, and
        # events during a lost connection.
        return f"/debug/events?after=0{'&blocks=1' if self.config.blocks else ''}"

    def _found_again(self, lost: float | None) -> None:
        if lost is None:
            return
        gap = self.clock() - lost
        self.gaps.append(gap)
        self.writer.add({"kind": NOT_CONNECTED, "at": self._last.at, "seconds": round(gap, 3)})
        print(f"connected again after {gap:.1f} s", file=sys.stderr, flush=True)

    def _keep(self, event: dict[str, Any]) -> None:
        if self._last.has(event):
            return
        self._last.note(event)
        self.writer.add(event)
        self.count += 1
        now = self.clock()
        if now - self._flushed > _FLUSH_SECONDS:
            self.writer.flush()
            self._flushed = now

    def _is_over(self, began: float) -> bool:
        return bool(self.config.seconds) and self.clock() - began >= self.config.seconds


class _LastEvents:
    """The events already recorded, to recognise their repeats in a restarted stream. An event is a
    repeat if it is older than the last event, or was recorded at the same time."""

    def __init__(self) -> None:
        self.at = 0.0
        self._of_that_time: list[dict[str, Any]] = []

    def has(self, event: dict[str, Any]) -> bool:
        at = event.get("at", self.at)
        return at < self.at or (at == self.at and event in self._of_that_time)

    def note(self, event: dict[str, Any]) -> None:
        at = event.get("at", self.at)
        if at > self.at:
            self.at = at
            self._of_that_time = []
        self._of_that_time.append(event)
