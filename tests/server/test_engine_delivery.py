"""Tests of an engine step's output: it reaches the event loop at once and in order, and a bad
message alone is lost."""

import asyncio
from collections.abc import Callable

import msgspec
import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.engine_client import EngineClient, Observed
from tests.harness.grpc_fixtures import ScriptedObserver, usage
from tests.harness.waiting import HANG_SECONDS

TRANSFER_ID = m.TransferId(7)
EVICTED = m.Evicted((m.Eviction(1, "tail", None, 70, 1.0, None, "a"),))
CANCELLED = m.HandoverCancelled(TRANSFER_ID)
WANTED = m.HandoverDeclined(TRANSFER_ID)
ENDED = m.TransferEnded(TRANSFER_ID, 9, None, False, ())


def token(index: int, request: str = "a") -> m.TokenOut:
    return m.TokenOut(m.RequestId(request), 5, -0.5, 1.0, index)


def client(
    observe: Callable[[Observed], None],
    handover: Callable[[m.Outbox], None] | None,
    count_tokens: Callable[[int], None] = lambda count: None,
) -> tuple[EngineClient, list[object]]:
    """Return a client and the callbacks scheduled on its loop. The loop runs each at once."""
    loop = asyncio.new_event_loop()
    woken: list[object] = []

    def call_soon_threadsafe(callback: Callable[..., None], *arguments: object) -> None:
        woken.append(callback)
        callback(*arguments)

    loop.call_soon_threadsafe = call_soon_threadsafe  # type: ignore[assignment,method-assign]
    loop.close()
    observer = ScriptedObserver(observing=observe, counting=count_tokens)
    front = EngineClient(lambda message: None, loop, handover, observer)
    return front, woken


def test_a_step_wakes_the_loop_once_and_keeps_its_order() -> None:
    observed: list[Observed] = []
    handed: list[m.Outbox] = []
    counts: list[int] = []
    front, woken = client(observed.append, handed.append, counts.append)
    front.deliver([token(0), EVICTED, WANTED, token(1), CANCELLED, ENDED])
    assert len(woken) == 1
    assert observed == [EVICTED, CANCELLED, ENDED] and counts == [2]
    # A cancelled hand-over goes to the record and to the control plane; the others go to one of
    # them.
    assert handed == [WANTED, CANCELLED]
    assert [eviction.sequence for eviction in front.ended.took("a")] == [1]


def columns(*tokens: m.TokenOut) -> m.TokensOut:
    ids, *numbers, tops = zip(*map(msgspec.structs.astuple, tokens), strict=True)
    kinds = (np.int32, np.float64, np.float64, np.int32)
    arrays = (np.array(n, kind) for n, kind in zip(numbers, kinds, strict=True))
    return m.TokensOut(ids, *arrays, {place: top for place, top in enumerate(tops) if top})


def test_the_likeliest_tokens_stay_with_their_token() -> None:
    plain = token(0)
    with_top = msgspec.structs.replace(token(1), top=((5, -0.5), (6, -1.5)))
    assert [*columns(plain, with_top, plain).each()] == [plain, with_top, plain]
    assert [*columns(plain, plain).each()] == [plain, plain]


async def test_the_tokens_of_many_requests_are_columns_of_one_message() -> None:
    counts: list[int] = []
    observer = ScriptedObserver(counting=counts.append)
    loop = asyncio.get_running_loop()
    front = EngineClient(lambda message: None, loop, observer=observer)
    answers: dict[str, list[object]] = {}

    async def read(name: str) -> None:
        submit = m.Submit(m.RequestId(name), np.array([5], dtype=np.int32), SamplingParams())
        answers[name] = [part async for part in front.generate(submit)]

    readers = [asyncio.ensure_future(read(name)) for name in "ab"]
    await asyncio.sleep(0)
    ends = [m.Finished(m.RequestId(name), m.FinishReason.LENGTH, usage(9, 2)) for name in "ab"]
    # Tokens of the ended request have no reader; the other requests get theirs.
    front.deliver([columns(token(0), token(0, "gone"), token(0, "b")), token(1)])
    front.deliver([columns(token(2), token(1, "b")), *ends])
    await asyncio.gather(*readers)
    assert counts == [4, 2]
    assert [ends[0]] == answers["a"][-1:] and [ends[1]] == answers["b"][-1:]
    told = {name: [t for part in parts[:-1] for t in part] for name, parts in answers.items()}
    assert told == {"a": [token(0), token(1), token(2)], "b": [token(0, "b"), token(1, "b")]}


def test_a_step_for_the_control_plane_alone_wakes_no_loop() -> None:
    handed: list[m.Outbox] = []
    front, woken = client(lambda message: None, handed.append)
    front.deliver([WANTED])
    assert handed == [WANTED] and not woken


def test_an_answer_goes_to_who_asked_whether_it_can_be_observed_or_not(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ended = m.Finished(
        m.RequestId("a"), m.FinishReason.LENGTH, m.Usage(9, 2, None, None, "local", False, 0.1, 0.2)
    )

    def observe(message: Observed) -> None:
        if message == ended:
            raise OSError("no space left")

    def count(tokens: int) -> None:
        raise OSError(f"no space left for {tokens}")

    async def answered() -> list[object]:
        observer = ScriptedObserver(observing=observe, counting=count)
        loop = asyncio.get_running_loop()
        front = EngineClient(lambda message: None, loop, observer=observer)
        submit = m.Submit(m.RequestId("a"), np.array([5], dtype=np.int32), SamplingParams())
        answer = front.generate(submit)
        first = asyncio.ensure_future(anext(answer))
        await asyncio.sleep(0)
        front.deliver([token(0), token(1), ended])
        return [await first, *[part async for part in answer]]

    assert asyncio.run(asyncio.wait_for(answered(), HANG_SECONDS)) == [[token(0), token(1)], ended]
    assert "for 2" in caplog.text and "Finished" in caplog.text


def test_an_update_whose_caller_is_gone_renames_the_states() -> None:
    async def names() -> bytes:
        asked: list[m.Inbox] = []
        front = EngineClient(asked.append, asyncio.get_running_loop(), None)
        update = asyncio.ensure_future(front.update_weights("folder", m.PauseMode.WAIT, ""))
        await asyncio.sleep(0)
        update.cancel()
        (sent,) = asked
        assert isinstance(sent, m.UpdateWeights)
        front.take([m.WeightsUpdated(sent.query_id, "2", b"names")])
        assert await asyncio.wait({update}) and update.cancelled()
        return front.weights.prefix

    assert asyncio.run(asyncio.wait_for(names(), HANG_SECONDS)) == b"names"


def test_a_hand_over_from_an_engine_that_has_none_is_an_error() -> None:
    front, _ = client(lambda message: None, None)
    with pytest.raises(TypeError, match="HandoverDeclined"):
        front.deliver([WANTED])
