"""Tests of a draining front's wait for its engine's hand-over to drain targets. It never exceeds
the time, and never waits for a dead or silent engine."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

import pytest

from tasuki.engine import messages as m
from tasuki.server.daemon import shutdown
from tasuki.server.daemon.shutdown import MOST_SECONDS, TimeForDrainTargets, alone_seconds
from tasuki.server.engine_client import EngineClient
from tests.harness.waiting import HANG_SECONDS

TAKEN = {m.DrainTargetOutcome.TAKEN: 2, m.DrainTargetOutcome.CUT: 1}
Scenario = Callable[[EngineClient, list[m.Inbox]], Awaitable[None]]


def play(scenario: Scenario) -> None:
    """Run the scenario with a client and the messages it posts."""

    async def run() -> None:
        posted: list[m.Inbox] = []
        client = EngineClient(posted.append, asyncio.get_running_loop(), None)
        await asyncio.wait_for(scenario(client, posted), HANG_SECONDS)

    asyncio.run(run())


def query_of(posted: list[m.Inbox]) -> int:
    (asked,) = [message for message in posted if isinstance(message, m.LeaveToDrainTargets)]
    return asked.query_id


def last_words(caplog: pytest.LogCaptureFixture) -> str:
    (record,) = [record for record in caplog.records if record.name == shutdown.__name__]
    return record.getMessage()


def test_the_bound_for_heirs_alone() -> None:
    assert [alone_seconds(timeout) for timeout in (0, 3, 30, 600)] == [0, 1, 10, MOST_SECONDS]


def test_an_engine_that_is_done_is_not_interrupted(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: EngineClient, posted: list[m.Inbox]) -> None:
        time = TimeForDrainTargets(client, HANG_SECONDS)
        await asyncio.sleep(0)
        client.take([m.LeftToDrainTargets(query_of(posted), TAKEN, tokens=300)])
        await time.end()
        assert not any(isinstance(message, m.EndLeaving) for message in posted)

    with caplog.at_level(logging.INFO):
        play(scenario)
    assert last_words(caplog) == "prefill nodes took 2 states of 300 tokens"


def test_when_the_time_is_over_it_is_ended_and_says_what_it_left(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(client: EngineClient, posted: list[m.Inbox]) -> None:
        time = TimeForDrainTargets(client, 0.0)
        await asyncio.sleep(0)
        ending = asyncio.create_task(time.end())
        while m.EndLeaving() not in posted:
            await asyncio.sleep(0.001)
        client.take([m.LeftToDrainTargets(query_of(posted), TAKEN, tokens=300)])
        await ending

    with caplog.at_level(logging.INFO):
        play(scenario)
    assert "2 states" in last_words(caplog)


def test_a_silent_engine_holds_nobody_up(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(client: EngineClient, posted: list[m.Inbox]) -> None:
        await TimeForDrainTargets(client, 0.0).end()

    monkeypatch.setattr(shutdown, "_REPORT_SECONDS", 0.01)
    play(scenario)
    assert "does not say" in last_words(caplog)


def test_an_engine_that_dies_holds_nobody_up(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: EngineClient, posted: list[m.Inbox]) -> None:
        time = TimeForDrainTargets(client, HANG_SECONDS)
        await asyncio.sleep(0)
        client.engine_lost("its device is lost")
        await time.end()
        await TimeForDrainTargets(client, HANG_SECONDS).end()

    play(scenario)
    messages = [r.getMessage() for r in caplog.records if r.name == shutdown.__name__]
    assert len(messages) == 2 and all("its device is lost" in words for words in messages)


def test_who_had_nothing_to_leave_says_nothing(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario(client: EngineClient, posted: list[m.Inbox]) -> None:
        time = TimeForDrainTargets(client, HANG_SECONDS)
        await asyncio.sleep(0)
        client.take([m.LeftToDrainTargets(query_of(posted))])
        await time.end()

    with caplog.at_level(logging.INFO):
        play(scenario)
    assert shutdown.__name__ not in {record.name for record in caplog.records}
