"""The state of nodes as sent in heartbeats and renewals."""

import asyncio
import math

import pytest

from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.control.link_status import (
    NodeProgress,
    progress_from_wire,
    progress_to_wire,
)
from tasuki.utils.loops import LoopPulse, LoopThread
from tests.harness.handover_nodes import nodes
from tests.harness.waiting import HANG_SECONDS, until


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -0.001])
@pytest.mark.parametrize("part", ["engine_seconds", "front_seconds"])
def test_what_is_no_duration_is_not_believed(bad: float, part: str) -> None:
    told = pb.Progress(engine_seconds=1.0, front_seconds=1.0)
    setattr(told, part, bad)
    assert progress_from_wire(told) is None


def test_progress_goes_there_and_back() -> None:
    progress = NodeProgress(0.25, 3.0)
    assert progress_from_wire(progress_to_wire(progress)) == progress


async def test_both_sides_of_a_link_learn_of_each_other() -> None:
    async with nodes() as both:
        await both.connected()
        async with asyncio.timeout(HANG_SECONDS):
            while both.client.links[0].status().progress is None or not both.service.peers():
                await asyncio.sleep(0.01)
        assert both.service.peers() == {"decode-0": NodeProgress()}


def test_a_loop_that_does_not_come_round_is_behind_until_it_does() -> None:
    now = [100.0]
    there = LoopThread("there", lambda reason: None)
    pulse = LoopPulse(there.loop.call_soon_threadsafe, lambda: now[0])
    assert pulse.behind() == 0.0
    now[0] += 3.0
    assert pulse.behind() == 3.0
    there.start()
    until(lambda: pulse.behind() == 0.0, pulse.behind)
    there.stop(HANG_SECONDS)
    there.close()
