"""Time is monotonic and of one host: a clock that jumps, or two hosts that disagree, change
nothing."""

import ast
from pathlib import Path

import pytest

from tasuki.proto import handover_pb2
from tasuki.transfer.rooms.fence import Fence, FenceTerms, WriterFacts
from tasuki.transfer.sending.link import WriteLeases
from tests.harness.waiting import ManualClock

ROOT = Path(__file__).parents[2]
PARTS = ("transfer", "engine", "prefill_node", "decode_node", "pycache", "model")
SOURCES = sorted(path for part in PARTS for path in (ROOT / part).rglob("*.py"))
WALL_CLOCK = {"time", "time_ns", "localtime", "gmtime", "ctime", "strftime", "CLOCK_REALTIME"}

NO_CLOCK = {"monotonic", "timedelta"}


def wall_clock_uses(source: str) -> list[str]:
    """Names through which the source could read the time of day."""
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


@pytest.mark.parametrize("skew", [-1e9, -3600.0, 0.0, 3600.0, 1e9])
def test_a_lease_ends_for_the_writer_before_the_owner_frees_whatever_their_clocks_say(
    skew: float,
) -> None:
    """Two hosts whose clocks differ by `skew` seconds: the writer counts from its question, the
    owner from the answer it gave later."""
    lease, retry, writer = 2.0, 1.0, ManualClock(1e6)
    leases = WriteLeases(lease, writer)
    leases.add("peer", [])
    asked = writer.now
    writer.now += 0.3
    answered = writer.now + skew
    leases.renew("peer", asked)
    fence = Fence(FenceTerms(lease + retry, retry, settle=0.0, acknowledge=1.0, patience=1.0))
    owner = WriterFacts(answered=answered)
    history = []
    for _ in range(60):
        writer.now += 0.1
        is_free = fence.reason(owner, writer.now + skew) is not None
        history.append((leases.writable("peer") is not None, is_free))
    assert history[0] == (True, False) and history[-1] == (False, True)
    assert (True, True) not in history, "freed while the writer could post"
    assert history.count((False, False)) > 10, "no time for what was posted last"
