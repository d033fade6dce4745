"""Time is monotonic and local to a host. A clock that jumps, or two hosts with different clocks,
change nothing."""

import ast
from pathlib import Path

import pytest

from tasuki.proto import handover_pb2

ROOT = Path(__file__).parents[2]
PARTS = ("transfer", "engine", "prefill_node", "decode_node", "pycache", "model")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
WALL_CLOCK = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "CLOCK_REALTIME"}

NO_CLOCK = {"monotonic", "timedelta"}


def wall_clock_uses(source: str) -> list[str]:
    """Return the names through which the source could read the time of day."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            if node.value.id == "time" and node.attr in WALL_CLOCK:
                found.append(f"time.{node.attr}")
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "datetime"):
            found += [name.name for name in node.names if name.name not in NO_CLOCK]
        elif isinstance(node, ast.Import):
            found += [name.name for name in node.names if name.name == "datetime"]
    return found


def test_nothing_of_the_hand_over_reads_the_time_of_day() -> None:
    faults = [
        f"{path.relative_to(ROOT)}: {', '.join(uses)}"
        for path in SOURCES
        if (uses := wall_clock_uses(path.read_text()))
    ]
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    "source",
    ["import time\ntime.time()", "from time import time", "import datetime", "time.time_ns"],
)
def test_the_scan_would_find_it(source: str) -> None:
    assert wall_clock_uses(source)


def test_no_message_of_the_hand_over_carries_a_moment() -> None:
    """Only durations: a moment of one host means nothing on another."""
    for message in handover_pb2.DESCRIPTOR.message_types_by_name.values():
        for field in message.fields:
            words = field.name.split("_")
            moments = {"timestamp", "time", "at", "deadline", "expiry"} & set(words)
            assert not moments, field.full_name
