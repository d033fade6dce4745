"""Calls to a prefill node that ends, for the states it leaves. Each state belongs to one connection
until its outcome is known. The end does not wait for absent nodes."""

import asyncio
from collections.abc import Callable

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.prefill_node import leaving_desk
from tasuki.prefill_node.leaving_desk import LeavingDesk
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import PeerInvalid
from tests.harness.waiting import HANG_SECONDS

TOKENS = np.arange(64, dtype=np.int32)


class World:
    """The desk over an engine that gives the states set by a test."""

    def __init__(self, *connected: str) -> None:
        self.connected = set(connected)
        self.posted: list[m.Inbox] = []
        self.gives: list[m.GivenState] = []
        self.mute = False
        self.desk = LeavingDesk(self._post, lambda: self.connected)

    def _post(self, message: m.Inbox) -> None:
        self.posted.append(message)
        if isinstance(message, m.LeftWanted) and not self.mute:
            state = self.gives.pop(0) if self.gives else None
            self.desk.answered(m.LeftState(message.query_id, state, False))

    def of(self, kind: type) -> list:
        return [message for message in self.posted if isinstance(message, kind)]

    async def ask(
        self, peer: str, done: pb.TakenOver | None = None, declines: bool = False
    ) -> pb.TakeOverResponse:
        request = pb.TakeOverRequest(connection_id=peer, done=done, declines=declines)
        return await self.desk.take_over(request)

    async def until(self, kind: type) -> None:
        async with asyncio.timeout(HANG_SECONDS):
            while not self.of(kind):
                await asyncio.sleep(0.005)


def state(number: int) -> m.GivenState:
    return m.GivenState(number, TOKENS, b"salt", True)


def done(number: int, outcome: int = pb.HEIR_OUTCOME_TAKEN) -> pb.TakenOver:
    return pb.TakenOver(number=number, outcome=outcome, bytes=100, heir="heir")


async def test_a_state_goes_out_whole_and_what_became_of_it_comes_back() -> None:
    world = World("a", "b")
    assert (await world.ask("a")).over, "nothing is left before it ends"
    world.desk.begin()
    assert world.desk.leaves
    world.gives = [state(7)]
    given = (await world.ask("a")).state
    assert (given.number, given.salt, given.known) == (7, b"salt", True)
    assert given.tokens == TOKENS.astype("<i4").tobytes()
    await world.ask("b", done(7))
    assert not world.of(m.LeftTakenOver), "it is another's"
    answer = await world.ask("a", done(7))
    assert not (answer.HasField("state") or answer.over)
    await world.ask("a", done(7))
    taken = m.LeftTakenOver(7, m.DrainTargetOutcome.TAKEN, 100, "heir")
    assert world.of(m.LeftTakenOver) == [taken]
    assert world.of(m.LeftWanted)[-1].asking == {"a", "b"}


async def test_what_was_given_to_who_goes_is_lost() -> None:
    world = World("a", "b")
    world.desk.begin()
    world.gives = [state(7)]
    await world.ask("a")
    await world.ask("b")
    world.connected.discard("a")
    await world.until(m.LeftTakenOver)
    assert world.of(m.LeftTakenOver) == [m.LeftTakenOver(7, m.DrainTargetOutcome.LOST)]
    await world.ask("b")
    assert world.of(m.LeftWanted)[-1].asking == {"b"}
    assert not world.of(m.EndLeaving)


@pytest.mark.parametrize("connected", [(), ("a", "b")])
async def test_where_nobody_takes_anything_it_is_over(connected: tuple[str, ...]) -> None:
    """No node is connected, or none knows another prefill node that stays."""
    world = World(*connected)
    world.desk.begin()
    for peer in connected:
        assert not world.of(m.EndLeaving)
        await world.ask(peer, declines=True)
    await world.until(m.EndLeaving)
    assert not world.of(m.LeftWanted)


async def test_what_one_has_in_hand_is_waited_for_though_the_others_decline() -> None:
    world = World("a", "b")
    world.gives = [state(7)]
    world.desk.begin()
    await world.ask("a")
    for peer in ("a", "b"):
        await world.ask(peer, declines=True)
    await asyncio.sleep(0.3)
    assert not world.of(m.EndLeaving)
    await world.ask("a", done(7), declines=True)
    await world.until(m.EndLeaving)


async def test_an_engine_that_does_not_answer_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later answer is given to no node, and the engine is told so."""
    monkeypatch.setattr(leaving_desk, "_ANSWER_SECONDS", 0.0)

    world = World("a")
    world.desk.begin()
    world.mute = True
    answer = await world.ask("a")
    assert not (answer.HasField("state") or answer.over)
    (wanted,) = world.of(m.LeftWanted)
    world.desk.answered(m.LeftState(wanted.query_id, state(7), False))
    assert world.of(m.LeftTakenOver) == [m.LeftTakenOver(7, m.DrainTargetOutcome.LOST)]


@pytest.mark.parametrize(
    "wrong",
    [lambda said: setattr(said, "bytes", 1 << 60), lambda said: setattr(said, "heir", "h" * 200)],
)
async def test_what_no_node_of_this_version_says_is_refused(
    wrong: Callable[[pb.TakenOver], None],
) -> None:
    world = World("a")
    world.desk.begin()
    said = done(7)
    wrong(said)
    with pytest.raises(PeerInvalid):
        await world.ask("a", said)


async def test_an_outcome_of_another_version_is_a_loss() -> None:
    world = World("a")
    world.desk.begin()
    world.gives = [state(7)]
    await world.ask("a")
    await world.ask("a", done(7, 99))
    assert world.of(m.LeftTakenOver)[0].outcome is m.DrainTargetOutcome.LOST
