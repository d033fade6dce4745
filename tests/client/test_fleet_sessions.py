"""Sessions over two real servers with scripted engines: the same for blocking calls and asyncio."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tasuki.client.errors import ClientError, RetryPolicy
from tasuki.client.fleet import AsyncFleet, Fleet
from tasuki.client.moving_session import Move, SessionTargets
from tasuki.client.prompt import Prompt
from tasuki.engine import messages as m
from tests.harness.grpc_fixtures import Front, running_front, text_codec

FAST = RetryPolicy(attempts=2, first_pause=0.001)
HELLO, MORE = Prompt(token_ids=[5, 6]), Prompt(token_ids=[8])
DRAINING = m.RequestError(m.ErrorKind.DRAINING, "this node is draining; try another")
OVERLOADED = m.RequestError(m.ErrorKind.OVERLOADED, "late", retry_after=2.0)
Fronts = dict[str, Front]


@pytest.fixture
def fronts(tmp_path: Path) -> Iterator[Fronts]:
    codec = text_codec(tmp_path)
    with running_front(codec) as one, running_front(codec) as other:
        yield {front.address: front for front in (one, other)}


def prompts(front: Front) -> list[list[int]]:
    submits = front.engine.of(m.Submit)
    return [each.prompt.tolist() for each in submits if each.purpose is m.Purpose.ANSWER]


def check(fronts: Fronts, left: str, entered: str, moves: tuple[Move, ...]) -> None:
    """Check that the session's first node answered the first turn, and its next node the second."""
    assert moves == (Move(left, entered, "draining", None),)
    assert prompts(fronts[entered]) == [[5, 6, 7, 8, 9, 8]]
    purposes = [submit.purpose for submit in fronts[left].engine.of(m.Submit)]
    assert purposes == [m.Purpose.ANSWER, m.Purpose.ANSWER, m.Purpose.HAND_BACK]


def test_a_session_moves(fronts: Fronts) -> None:
    with Fleet([*fronts], retry=FAST) as fleet, fleet.open_session(b"salt") as session:
        session.append(HELLO)
        session.generate().result()
        left = session.node
        fronts[left].engine.reject = DRAINING
        session.append(MORE)
        answer = session.generate().result()
        assert answer.token_ids == (7, 8, 9)
        check(fronts, left, session.node, session.moves)
        assert fronts[left].calls.stats().sessions == 0


async def test_an_awaited_session_moves_alike(fronts: Fronts) -> None:
    async with (
        AsyncFleet([*fronts], retry=FAST) as fleet,
        await fleet.open_session(b"salt") as session,
    ):
        await session.append(HELLO)
        await session.generate().result()
        left = session.node
        fronts[left].engine.reject = DRAINING
        await session.append(MORE)
        answer = await session.generate().result()
        assert answer.token_ids == (7, 8, 9)
        check(fronts, left, session.node, session.moves)


def test_where_both_are_overloaded_the_caller_is_told_and_when_to_come_back(
    fronts: Fronts,
) -> None:
    targets = SessionTargets(first_token=0.5)
    with Fleet([*fronts], retry=FAST) as fleet, fleet.open_session(targets=targets) as session:
        session.append(HELLO)
        for front in fronts.values():
            front.engine.reject = OVERLOADED
        with pytest.raises(ClientError) as raised:
            session.generate().result()
        assert (raised.value.kind, raised.value.retry_after) == ("overloaded", 2.0)
        asked = [each for front in fronts.values() for each in front.engine.of(m.Submit)]
        turns = [each.targets.first_token for each in asked if each.purpose is m.Purpose.ANSWER]
        assert turns == [0.5, 0.5], "once at each, with its target"
        for front in fronts.values():
            front.engine.reject = None
        assert session.generate().result().token_ids == (7, 8, 9)
