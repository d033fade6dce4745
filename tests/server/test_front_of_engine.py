"""Tests of the front's end of an engine process, against processes with one behaviour each."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.server.daemon.engine_process import EngineProcess, EngineProcessError
from tasuki.server.traces import NoTracing
from tests.harness import scripted_engine
from tests.harness.engines import submit
from tests.harness.processes import ended
from tests.harness.waiting import HANG_SECONDS


class Traced(NoTracing):
    def header(self, request: m.RequestId) -> str:
        return f"trace of {request}" if request != "untraced" else ""


class Ears:
    """A front that keeps everything received."""

    def __init__(self) -> None:
        self.tracing = Traced()
        self.loop = asyncio.get_running_loop()
        self.come: asyncio.Queue[Any] = asyncio.Queue()
        self.reasons: asyncio.Queue[str] = asyncio.Queue()

    def deliver(self, messages: Sequence[m.Outbox]) -> None:
        raise AssertionError("from a thread that this process does not have")

    def take(self, messages: Sequence[Any]) -> None:
        for message in messages:
            self.come.put_nowait(message)

    def observe(self, message: Any) -> None:
        raise RuntimeError("what counts is broken")

    def lose(self, reason: str) -> None:
        self.reasons.put_nowait(reason)


def run(job: Any, scenario: Callable[[EngineProcess], Awaitable[None]]) -> None:
    async def whole() -> None:
        engine = await EngineProcess.launch(job)
        try:
            await asyncio.wait_for(scenario(engine), HANG_SECONDS)
        finally:
            await engine.stop()
            assert ended(engine.pid)

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("job", "reason"),
    [
        (scripted_engine.die, "has ended with status 3; restart this node"),
        (scripted_engine.refuse, "^arena_mib 1 is too little: give more$"),
    ],
)
def test_an_engine_that_does_not_stand_is_a_typed_error(job: Any, reason: str) -> None:
    async def scenario(engine: EngineProcess) -> None:
        with pytest.raises(EngineProcessError, match=reason):
            await engine.stands()

    run(job, scenario)


class EndsAtTheLastMoment:
    """A process that ends as its timeout expires, so a kill no longer finds it."""

    pid, returncode = 1, 3

    def __init__(self) -> None:
        self._asked = 0

    async def wait(self) -> int:
        self._asked += 1
        if self._asked == 1:
            await asyncio.Event().wait()
        return self.returncode

    def kill(self) -> None:
        raise ProcessLookupError


async def test_an_engine_that_ends_at_the_last_moment_is_a_typed_error_too() -> None:
    engine = EngineProcess(EndsAtTheLastMoment())
    engine.link_ended(None)
    with pytest.raises(EngineProcessError, match="has ended with status 3"):
        await asyncio.wait_for(engine.stands(), HANG_SECONDS)


def test_an_engine_that_sends_what_is_no_frame_is_killed_and_its_front_told() -> None:
    async def scenario(engine: EngineProcess) -> None:
        front, losses = Ears(), list[str]()
        assert await engine.stands() == scripted_engine.STANDS
        engine.attach(front)
        engine.on_loss(lambda: losses.append(engine.reason or ""))
        reason = await front.reasons.get()
        assert "sent what is no frame" in reason and engine.reason == reason
        assert losses == [reason] and ended(engine.pid)
        # A later front learns of the loss too, and no call waits forever.
        late = Ears()
        engine.attach(late)
        assert await late.reasons.get() == reason
        await engine.retire_handover()
        await engine.end_handover()

    run(scripted_engine.babble, scenario)


def test_an_engine_that_was_asked_to_end_has_the_time_that_it_takes(tmp_path: Path) -> None:
    async def scenario(engine: EngineProcess) -> None:
        await engine.stands()

    run(partial(scripted_engine.linger, tmp_path / "ended"), scenario)
    assert (tmp_path / "ended").exists()


def test_what_observes_may_break_and_the_front_goes_on() -> None:
    async def scenario(engine: EngineProcess) -> None:
        front = Ears()
        await engine.stands()
        engine.take([m.PeersChanged(True), m.FlushReply(1, 4)])
        engine.attach(front)
        engine.take([m.WriterFenced(m.TransferId(1)), m.FlushReply(2, 4)])
        assert [await front.come.get(), await front.come.get()] == [
            m.FlushReply(1, 4),
            m.FlushReply(2, 4),
        ]

    run(scripted_engine.repeat, scenario)


def test_a_message_that_cannot_cross_ends_its_request_alone() -> None:
    async def scenario(engine: EngineProcess) -> None:
        front = Ears()
        await engine.stands()
        engine.attach(front)
        asked = submit("good", np.arange(5), 4)
        engine.post(replace(asked, request_id=m.RequestId("\ud800")))
        refused = await front.come.get()
        assert refused.request_id == "\ud800" and refused.error.kind is m.ErrorKind.INTERNAL
        engine.post(asked)
        assert (await front.come.get()).request_id == "good"

    run(scripted_engine.repeat, scenario)


def test_a_traced_request_takes_its_parent_along() -> None:
    async def scenario(engine: EngineProcess) -> None:
        front = Ears()
        await engine.stands()
        engine.attach(front)
        engine.post(submit("untraced", np.arange(5), 4))
        assert (await front.come.get()).error.message == ""
        engine.post(submit("one", np.arange(5), 4))
        assert (await front.come.get()).error.message == "trace of one"

    run(scripted_engine.repeat, scenario)
