"""The three fences: each opens on its own evidence and on nothing else."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tasuki.transfer.fencing import evidence
from tasuki.transfer.fencing.evidence import (
    DrainAcknowledged,
    Fence,
    FenceReason,
    LeaseExpired,
    WriterDead,
)
from tasuki.transfer.fencing.writer_fence import Escalation, WriterFence
from tasuki.transfer.fencing.writer_liveness import WriterLife
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.reports import Drain
from tests.harness.waiting import HANG_SECONDS, ManualClock, until

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


def test_a_fence_without_evidence_stays_closed() -> None:
    drain = DrainAcknowledged()
    fence = Fence([drain])
    assert fence.reason() is None
    drain.acknowledge()
    assert fence.reason() is FenceReason.DRAIN_ACKNOWLEDGED


def test_death_is_proven_even_of_a_zombie(writer: Writer) -> None:
    process, identity = writer
    dead = WriterDead.watch(identity, settle=0.1)
    assert dead is not None
    fence = Fence([dead])
    assert fence.reason() is None
    process.kill()
    started = time.monotonic()
    # Nobody has waited for the child: it is a zombie.
    until(lambda: fence.reason() is FenceReason.WRITER_DEAD, "the death shows")
    assert time.monotonic() - started >= 0.1, "what was under way had no time to settle"
    dead.close()
    assert fence.reason() is FenceReason.WRITER_DEAD


def test_another_host_or_another_process_of_the_pid_is_not_watched(writer: Writer) -> None:
    _, identity = writer
    others: list[dict[str, Any]] = [
        *({"boot_id": "another"}, {"pid_namespace": 1}),
        *({"start_ticks": 1}, {"pid": 2**22 + 1}),
    ]
    for other in others:
        assert WriterDead.watch(replace(identity, **other), 0) is None, other


def test_a_lease_expires_only_after_renewals_stopped() -> None:
    clock, renewed = ManualClock(1000.0), [None]
    expired = LeaseExpired(lambda: renewed[0], margin=3.0, clock=clock)
    assert not expired.holds(), "still renewing"
    renewed[0] = 998.0
    for now, held in ((1000.0, False), (1001.0, False), (1001.1, True)):
        clock.now = now
        assert expired.holds() is held


def test_a_writer_that_can_be_watched_has_two_ways_to_be_known_gone() -> None:
    own = ProcessIdentity.own()
    for process, ways in (
        (own, [WriterDead, LeaseExpired]),
        (replace(own, boot_id="another host"), [LeaseExpired]),
    ):
        clock = ManualClock(10.0)
        writer = WriterLife(process, 1.0, 0.5, 0.0, clock=clock)
        evidence = writer.evidence()
        assert [type(item) for item in evidence] == ways
        clock.now = 100.0
        assert not any(item.holds() for item in evidence), "it is still answered"
        writer.answering()
        writer.lose()
        clock.now = 200.0
        writer.answering()
        assert evidence[-1].holds(), "an answer after the loss would have been none"
        clock.now = 101.5
        assert not evidence[-1].holds(), "to the end of lease and retries"


def test_a_writer_that_acknowledges_nothing_is_given_up_and_its_connection_severed() -> None:
    """Without our answers its lease runs out; before that nothing is free."""

    async def scenario() -> None:
        lost: list[float] = []
        severed: list[FenceReason] = []
        clock = ManualClock(10.0)

        async def sever(reason: FenceReason) -> None:
            severed.append(reason)

        def give_up() -> None:
            lost.append(clock.now)
            clock.now += 100.0

        async def ask() -> None:
            await asyncio.Event().wait()

        expired = LeaseExpired(lambda: lost[0] if lost else None, 5.0, clock=clock)
        fence = WriterFence(3, [expired], 0.0, Escalation(0.05, give_up, sever))
        assert not fence.answered
        reason = await asyncio.wait_for(fence.hold(ask), HANG_SECONDS)
        assert reason is FenceReason.LEASE_EXPIRED
        assert len(lost) == 1 and severed == [FenceReason.LEASE_EXPIRED]

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("drain", "reason"),
    [
        (Drain.DRAINED, FenceReason.DRAIN_ACKNOWLEDGED),
        (Drain.FORCED, FenceReason.LEASE_EXPIRED),
    ],
)
def test_what_the_writer_says_opens_the_fence_and_ends_the_asking(
    drain: Drain, reason: FenceReason
) -> None:
    async def scenario() -> None:
        severed: list[FenceReason] = []
        asked: list[str] = []

        async def sever(told: FenceReason) -> None:
            severed.append(told)

        fence = WriterFence(3, [], 0.0, Escalation(60.0, lambda: asked.append("up"), sever))

        async def ask() -> None:
            fence.acknowledge(drain)
            try:
                await asyncio.Event().wait()
            finally:
                asked.append("cancelled")

        assert await asyncio.wait_for(fence.hold(ask), HANG_SECONDS) is reason
        await asyncio.sleep(0)
        assert fence.answered and severed == [reason] and asked == ["cancelled"]

    asyncio.run(scenario())


def test_a_watch_holds_one_descriptor_and_what_is_not_watched_none(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, identity = writer

    def descriptors() -> int:
        """Of processes: others of this process come and go by themselves."""
        found = 0
        for handle in Path("/proc/self/fd").iterdir():
            with suppress(OSError):
                found += "pidfd" in os.readlink(handle)
        return found

    before = descriptors()
    watched, closed = WriterDead.watch(identity, 0), WriterDead.watch(identity, 0)
    assert watched is not None and closed is not None and descriptors() == before + 2
    closed.close()
    closed.close()
    assert descriptors() == before + 1
    del watched
    assert descriptors() == before
    assert WriterDead.watch(replace(identity, start_ticks=1), 0) is None

    def unreadable(pid: int) -> int:
        raise OSError(pid)

    monkeypatch.setattr(evidence, "_start_ticks", unreadable)
    assert WriterDead.watch(identity, 0) is None, "it may be another process of that pid"
    assert descriptors() == before


def test_a_writer_is_severed_once_somebody_severed_it() -> None:
    assert not WriterLife(ProcessIdentity.own(), 1.0, 0.5, 0.0).severed
