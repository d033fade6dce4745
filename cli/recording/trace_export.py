"""`tasuki trace-export`: recorded traffic as an anonymous trace of block hashes.

Blocks are counted off in order of their first appearance, sessions too, and times from the first
request, so that nothing of the prompts, names or dates is left. `tasuki replay-trace` reads it.
"""

import gzip
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from tasuki.utils.config.flags import FlagParser

from .file_format import Recording, RecordingError

_STOPS = {"tool_call": "tool_use", "end_of_turn": "end_turn"}


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki trace-export", "A recording as an anonymous trace.")
    parser.add_argument("file", type=Path, help="of `tasuki record --blocks`")
    parser.add_argument("out", type=Path, help="trace to write: .jsonl or .jsonl.gz")
    values = parser.parse_args(argv)
    rows = list(trace_rows(Recording.load(values.file)))
    if not rows:
        raise RecordingError(f"{values.file}: holds no finished prompt with blocks: use --blocks")
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in rows)
    if values.out.suffix == ".gz":
        values.out.write_bytes(gzip.compress(text.encode()))
    else:
        values.out.write_text(text)
    print(f"{len(rows)} requests in {values.out}", file=sys.stderr)
    return 0


def trace_rows(recording: Recording) -> Iterator[dict[str, Any]]:
    """One of each request that was answered, in order of arrival."""
    finished = {
        event["request"]: event
        for event in recording.events
        if event["kind"] == "finished" and event["reason"] != "abort"
    }
    # 0, 1, 2, ... for names as they first appear.
    blocks: defaultdict[str, int] = defaultdict(count().__next__)
    sessions: defaultdict[str, int] = defaultdict(count().__next__)
    first: float | None = None
    for event in recording.events:
        end = finished.get(event.get("request", ""))
        if event["kind"] != "submit" or end is None or not event.get("blocks"):
            continue
        first = event["at"] if first is None else first
        row = {
            "timestamp": round(1000 * (event["at"] - first)),
            "input_length": event["prompt_tokens"],
            "output_length": end["usage"]["completion_tokens"],
            "hash_ids": [blocks[block] for block in event["blocks"]],
            "stop": _STOPS.get(end["hint"], ""),
        }
        if event["session"] is not None:
            row |= {"session_id": sessions[event["session"]], "agent": 0}
        yield row
