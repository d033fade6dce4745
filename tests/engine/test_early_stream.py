"""Whichever way an early step goes, its ids are kept until its stream has been waited for: what the
host gave up may still run on the device."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from tasuki.engine import messages as m
from tasuki.engine.handover.early_step import EarlySteps
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.transfer.transports.loopback import Fault

from tests.engine.test_early_start import LONG, NAME, fused, prompt
from tests.harness.engine_pair import EnginePair, Room, engine_pair
from tests.harness.engines import submit, tiny_parts
from tests.harness.waiting import HANG_SECONDS, until

THREAD = "tasuki-early-step"


@dataclass
class BusyStream:
    """A device whose work goes on after the calls that launched it have returned."""

    did: list[str] = field(default_factory=list)
    waiting: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    breaks: bool = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.did.append("entered")
        try:
            yield
        finally:
            self.did.append("left")

    def synchronize(self) -> None:
        self.waiting.set()
        assert self.go.wait(30)
        self.did.append("waited")
        if self.breaks:
            raise RuntimeError("the device is gone")


class Broken(Qwen35Model):
    def head(self, *args: Any) -> torch.Tensor:
        if threading.current_thread().name.startswith(THREAD):
            raise RuntimeError("broken on purpose")
        return super().head(*args)


@contextmanager
def pair_with(
    stream: BusyStream, *, broken: bool = False, hold: bool = False
) -> Iterator[EnginePair]:
    """hold: the tenth window does not land."""
    parts = tiny_parts()
    if broken:
        parts = replace(parts, model=Broken(parts.model.config, parts.model.weights))
    fault = Fault.HOLD if hold else Fault.NONE
    with engine_pair(
        tiny_parts(), parts, lambda index: fault if index == 9 else Fault.NONE
    ) as pair:
        steps: EarlySteps = pair.early._steps
        steps._stream = lambda: stream
        try:
            yield pair
        finally:
            stream.go.set()
        if not stream.breaks:
            pair.decode.assert_at_rest()


def lose(pair: EnginePair, room: Room) -> None:
    pair.decode.post(m.HandoverFailed(room.ticket.room, "the sender is gone"))


def abort(pair: EnginePair, room: Room) -> None:
    pair.decode.post(m.Abort(m.RequestId(NAME)))


Give = Callable[[EnginePair, Room], None]


@pytest.mark.parametrize("give_up", [lose, abort])
@pytest.mark.parametrize("how", ["shut", "broke", "drew"])
def test_ids_are_kept_until_the_stream_was_waited_for(how: str, give_up: Give) -> None:
    stream = BusyStream()
    with pair_with(stream, broken=how == "broke", hold=how == "shut") as pair:
        room = pair.hand_over(submit(NAME, prompt(150), 5))
        pair.ready(room, LONG)
        if how == "shut":
            until(lambda: bool(pair.fabric.held), "waited in vain")
            give_up(pair, room)
        assert stream.waiting.wait(30)
        if how != "shut":
            give_up(pair, room)
        pair.decode.post(m.WriterFenced(room.ticket.room))
        assert stream.did == ["entered", "left"]
        held = pair.decode.stats()
        assert held.slots["quarantined"] == 2 and held.pages["quarantined"] > 0
        assert pair.said_by_steps.empty(), "the engine was told before the stream was waited for"
        stream.go.set()
        pair.step_ended()
        assert stream.did == ["entered", "left", "waited"]
        assert pair.decode.stats().slots["quarantined"] == 0
        pair.decode.run()
        if give_up is lose:
            assert pair.decode.tokens(NAME) == fused(prompt(150), 5)


def test_a_step_joins_only_behind_its_stream() -> None:
    stream = BusyStream()
    with pair_with(stream) as pair:
        room = pair.hand_over(submit(NAME, prompt(90), 4))
        pair.ready(room, LONG)
        assert stream.waiting.wait(30)
        pair.done(room)
        assert not pair.decode.step() and len(pair.decode.tokens(NAME)) == 1
        stream.go.set()
        pair.step_ended()
        pair.decode.run()
        assert pair.decode.tokens(NAME) == fused(prompt(90), 4)


def test_a_stream_that_cannot_be_waited_for_keeps_its_ids_for_good() -> None:
    stream = BusyStream(breaks=True)
    with pair_with(stream) as pair:
        room = pair.hand_over(submit(NAME, prompt(150), 5))
        pair.ready(room, LONG)
        assert stream.waiting.wait(30)
        lose(pair, room)
        pair.decode.post(m.WriterFenced(room.ticket.room))
        stream.go.set()
        pair.step_ended()
        assert pair.decode.stats().slots["quarantined"] == 2
        pair.decode.run()
        assert pair.decode.tokens(NAME) == fused(prompt(150), 5), "others are served without them"


def test_the_end_of_an_earlier_step_joins_no_room_whose_own_step_still_runs() -> None:
    """The word of a step's end may come after the next step has begun."""
    first, second = BusyStream(), BusyStream()
    first.go.set()
    streams = iter((first, second))
    with pair_with(second) as pair:
        pair.early._steps._stream = lambda: next(streams)
        one = pair.hand_over(submit("one", prompt(90), 4))
        pair.ready(one, LONG)
        ended = pair.said_by_steps.get(timeout=HANG_SECONDS)
        two = pair.hand_over(submit("two", prompt(91), 4))
        pair.ready(two, LONG)
        assert second.waiting.wait(30)
        pair.done(two)
        pair.decode.post(ended)
        assert len(pair.decode.tokens("two")) == 1, "joined while its step ran"
        pair.done(one)
        second.go.set()
        pair.step_ended()
        pair.decode.run()
        for name, length in (("one", 90), ("two", 91)):
            assert pair.decode.tokens(name) == fused(prompt(length), 4)
