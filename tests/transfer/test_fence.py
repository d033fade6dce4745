"""The three fences: each opens by its own evidence and no other."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasuki.transfer.control import writer_life
from tasuki.transfer.control.writer_life import WatchedProcess, WriterLife
from tasuki.transfer.lifecycle.fence import ALIVE, Fence, FenceReason, FenceTerms, WriterFacts
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.reports import Drain
from tests.harness.waiting import ManualClock, until

CHILD = """
import sys
from tasuki.transfer.node_identity import ProcessIdentity
me = ProcessIdentity.own()
print(me.boot_id, me.pid_namespace, me.pid, me.start_ticks, flush=True)
sys.stdin.read()
"""


Writer = tuple["subprocess.Popen[str]", ProcessIdentity]


@pytest.fixture
def writer() -> Iterator[Writer]:
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        boot, *numbers = process.stdout.readline().split()
        yield process, ProcessIdentity(boot, *(int(number) for number in numbers))
        process.kill()


def fence_of(lease: float = 5.0, retry: float = 1.0, settle: float = 0.0) -> Fence:
    return Fence(FenceTerms(lease, retry, settle, acknowledge=1.0, patience=1.0))


def test_a_fence_without_evidence_stays_closed() -> None:
    fence = fence_of()
    assert fence.reason(ALIVE, 1e9) is None and not fence.answered
    fence.acknowledge(Drain.DRAINED, 10.0)
    assert fence.reason(ALIVE, 10.0) is FenceReason.DRAIN_ACKNOWLEDGED and fence.answered


def test_a_forced_drain_says_that_nothing_more_is_posted_not_that_all_has_landed() -> None:
    fence = fence_of(retry=2.0)
    fence.acknowledge(Drain.FORCED, 10.0)
    fence.acknowledge(Drain.FORCED, 11.9)
    assert fence.answered and fence.reason(ALIVE, 12.0) is None
    assert fence.reason(ALIVE, 12.1) is FenceReason.LEASE_EXPIRED, "the first word counts"


def test_a_death_counts_once_what_was_under_way_has_settled() -> None:
    fence = fence_of(settle=0.5)
    assert fence.reason(WriterFacts(died=10.0), 10.4) is None
    assert fence.reason(WriterFacts(died=10.0), 10.5) is FenceReason.WRITER_DEAD


def test_death_is_seen_even_of_a_zombie(writer: Writer) -> None:
    process, identity = writer
    watched = WatchedProcess.watch(identity)
    assert watched is not None and watched.died() is None
    process.kill()
    # The child was not waited for, so it is a zombie.
    until(lambda: watched.died() is not None, "the death shows")
    died = watched.died()
    watched.close()
    assert watched.died() == died


def test_another_host_or_another_process_of_the_pid_is_not_watched(writer: Writer) -> None:
    _, identity = writer
    others: list[dict[str, Any]] = [
        *({"boot_id": "another"}, {"pid_namespace": 1}),
        *({"start_ticks": 1}, {"pid": 2**22 + 1}),
    ]
    for other in others:
        assert WatchedProcess.watch(replace(identity, **other)) is None, other


def test_a_lease_expires_only_after_renewals_stopped() -> None:
    fence = fence_of(lease=3.0)
    assert fence.reason(ALIVE, 1000.0) is None, "still renewing"
    for now, held in ((1000.0, False), (1001.0, False), (1001.1, True)):
        assert (fence.reason(WriterFacts(answered=998.0), now) is not None) is held


def test_a_writer_that_can_be_watched_has_two_ways_to_be_known_gone() -> None:
    own = ProcessIdentity.own()
    for process, is_watched in ((own, True), (replace(own, boot_id="another host"), False)):
        clock = ManualClock(10.0)
        writer = WriterLife(process, 1.0, 0.5, 0.0, clock=clock)
        fence = Fence(writer.terms(acknowledge=1.0, patience=1.0))
        assert writer.is_watched is is_watched
        clock.now = 100.0
        assert fence.reason(writer.facts(), clock.now) is None, "it is still answered"
        writer.answering()
        writer.lose()
        clock.now = 200.0
        writer.answering()
        assert writer.facts().answered == 100.0, "an answer after the loss would have been none"
        reason = fence.reason(writer.facts(), clock.now)
        assert reason is FenceReason.LEASE_EXPIRED
        assert fence.reason(writer.facts(), 101.5) is None, "to the end of lease and retries"


def test_a_watch_holds_one_descriptor_and_what_is_not_watched_none(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, identity = writer

    def descriptors() -> int:
        """Return the number of process descriptors; others of this process come and go by
        themselves."""
        found = 0
        for handle in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found += "pidfd" in os.readlink(handle)
        return found

    before = descriptors()
    watched, closed = WatchedProcess.watch(identity), WatchedProcess.watch(identity)
    assert watched is not None and closed is not None and descriptors() == before + 2
    closed.close()
    closed.close()
    assert descriptors() == before + 1
    del watched
    assert descriptors() == before
    assert WatchedProcess.watch(replace(identity, start_ticks=1)) is None

    def unreadable(pid: int) -> int:
        raise OSError(pid)

    monkeypatch.setattr(writer_life, "_start_ticks", unreadable)
    assert WatchedProcess.watch(identity) is None, "it may be another process of that pid"
    assert descriptors() == before


def test_a_writer_is_severed_once_somebody_severed_it() -> None:
    assert not WriterLife(ProcessIdentity.own(), 1.0, 0.5, 0.0).severed
