"""`tasuki record`: keeps what happens at a node in a file, until interrupted."""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tasuki.utils.config.flags import parse_config
from tasuki.utils.config.options import option

from .dashboard_stream import HttpTarget
from .file_format import RecordingWriter

_FLUSH_SECONDS = 5.0


@dataclass(frozen=True)
class RecordConfig(HttpTarget):
    out: str = option("tasuki-recording.jsonl.gz", "the file; one of that name is replaced")
    seconds: float = option(0.0, "stop after so long; 0: when interrupted")
    blocks: bool = option(
        False, "keep prompts' blocks as anonymous hashes too, for `tasuki trace-export`"
    )


def main(argv: Sequence[str]) -> int:
    config = parse_config("tasuki record", "What happens at a node, in a file.", argv, RecordConfig)
    about = next(config.values("/debug/stream"))["about"]
    with RecordingWriter(Path(config.out), about) as writer, suppress(KeyboardInterrupt):
        _record(config, writer)
    print(f"{writer.count} events in {config.out}", file=sys.stderr)
    return 0


def _record(config: RecordConfig, writer: RecordingWriter) -> None:
    # From the first event that the node remembers: the page of the recording then has its past too.
    path = f"/debug/events?after=0{'&blocks=1' if config.blocks else ''}"
    began = flushed = time.monotonic()
    for event in config.values(path):
        writer.add(event)
        now = time.monotonic()
        if now - flushed > _FLUSH_SECONDS:
            writer.flush()
            flushed = now
        if config.seconds and now - began > config.seconds:
            return
