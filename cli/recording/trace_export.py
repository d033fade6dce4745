"""`tasuki trace-export`: recorded traffic as an anonymous trace of block hashes.

Blocks and sessions are numbered in order of first appearance, and times count from the first
request. So no prompts, names or dates remain. `tasuki replay-trace` reads it.
"""

import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tasuki.utils.flags import FlagParser

from .file_format import Recording, RecordingError

_STOPS = {"tool_call": "tool_use", "end_of_turn": "end_turn"}
_RUNNING = "had not ended when the recording did"
_REFUSED = "were refused"
_CUT_OFF = "were given up by their clients"
_BEGUN_BEFORE = "began before the node's memory of them"
_WITHOUT_BLOCKS = "came before a recording with --blocks began"


@dataclass(frozen=True)
class Trace:
    """An anonymous trace of requests. left_out: number of recorded requests without a row, by
    reason."""

    rows: list[dict[str, Any]]
    left_out: Counter[str]

    @property
    def summary(self) -> str:
        total = len(self.rows) + self.left_out.total()
        reasons = [f"{number} {reason}" for reason, number in self.left_out.most_common()]
        behind = f"; left out: {', '.join(reasons)}" if reasons else ""
        return f"{len(self.rows)} of {total} requests{behind}"


def main(argv: Sequence[str]) -> int:
    parser = FlagParser("tasuki trace-export", "A recording as an anonymous trace.")
    parser.add_argument("file", type=Path, help="of `tasuki record --blocks`")
    parser.add_argument("out", type=Path, help="trace to write: .jsonl or .jsonl.gz")
    values = parser.parse_args(argv)
    recording = Recording.load(values.file)
    trace = trace_of(recording)
    if not trace.rows:
        raise RecordingError(f"{values.file}: {trace.summary}; {_fix(recording)}")
    text = "".join(json.dumps(row, separators=(",", ":")) + "\n" for row in trace.rows)
    if values.out.suffix == ".gz":
        values.out.write_bytes(gzip.compress(text.encode()))
    else:
        values.out.write_text(text)
    print(f"{trace.summary}, in {values.out}", file=sys.stderr)
    return 0


def _fix(recording: Recording) -> str:
    """Return the advice on how to record again, for a recording without exportable requests."""
    submits = [event for event in recording.events if event["kind"] == "submit"]
    if any(event.get("blocks") for event in submits):
        return "record for longer, until requests have ended"
    if submits:
        return "record with --blocks, while requests come"
    return "record while requests come, with --blocks"


def trace_of(recording: Recording) -> Trace:
    """Return the trace of a recording. Its rows are the answered, not aborted requests with blocks,
    in order of arrival."""
    ends = {
        event["request"]: event
        for event in recording.events
        if event["kind"] in ("finished", "rejected")
    }
    # 0, 1, 2, ... for names in the order of their first appearance.
    blocks: defaultdict[str, int] = defaultdict(count().__next__)
    sessions: defaultdict[str, int] = defaultdict(count().__next__)
    rows: list[dict[str, Any]] = []
    left_out: Counter[str] = Counter()
    submitted = set()
    first: float | None = None
    for event in recording.events:
        if event["kind"] != "submit":
            continue
        submitted.add(event["request"])
        end = ends.get(event["request"])
        reason = _why_not(event, end)
        if reason is not None or end is None:
            left_out[reason or _RUNNING] += 1
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
        rows.append(row)
    unseen = ends.keys() - submitted
    if unseen:
        left_out[_BEGUN_BEFORE] += len(unseen)
    return Trace(rows, left_out)


def _why_not(submit: dict[str, Any], end: dict[str, Any] | None) -> str | None:
    """Return the reason for leaving a request out of the trace, or None if it has a row."""
    if end is None:
        return _RUNNING
    if end["kind"] == "rejected":
        return _REFUSED
    if end["reason"] == "abort":
        return _CUT_OFF
    return None if submit.get("blocks") else _WITHOUT_BLOCKS
