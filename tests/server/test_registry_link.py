"""Tests of a front worker's calls up to its registry, given up at every moment and over every
delay.

Wires join the worker's own classes and its seat. A wire delivers everything sent in the meantime in
one read, after a number of event loop turns. All moments and delays are played; none is sampled.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from itertools import product
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.errors import ServerError
from tasuki.server.workers import messages as w
from tasuki.server.workers.links import RegistryLink, worker_frame, worker_frames
from tasuki.server.workers.worker_client import AskedSessions, WorkerClient
from tests.harness.played_asks import ANN, OF_ANN, RESTED, Played, turns

DELAYS = (0, 1, 3)
MOMENTS = range(16)
NEVER = 99
GRANTED = (0, 2, 6)
"""Turns before the gate opens."""


class Wire(asyncio.Transport):
    """A transport with delay: it delivers all bytes written meanwhile, `delay` turns after the
    first write."""

    def __init__(self, deliver: Callable[[bytes], None], delay: int) -> None:
        super().__init__()
        self._deliver = deliver
        self._delay = delay
        self._written = b""

    def write(self, data: Any) -> None:
        if not self._written:
            self._wait(self._delay)
        self._written += bytes(data)

    def _wait(self, left: int) -> None:
        loop = asyncio.get_running_loop()
        if left:
            loop.call_soon(self._wait, left - 1)
        else:
            loop.call_soon(self._send)

    def _send(self) -> None:
        sent, self._written = self._written, b""
        self._deliver(sent)


class Joined:
    """A worker and its seat. up, down: turns of the loop for messages to the registry and back."""

    def __init__(self, played: Played, up: int, down: int) -> None:
        self.played = played
        self.ended: list[object] = []
        self.link = RegistryLink(lambda unasked: None, lambda: self.ended.append("gone"))
        self.reader = worker_frames()
        self.link.connection_made(Wire(self._to_seat, up))
        self._back = Wire(self.link.data_received, down)
        sent = played.seat.send

        def send(messages: Sequence[Any]) -> None:
            sent(messages)
            self._back.write(worker_frame(messages))

        played.seat.send = send
        self.posted: list[Any] = []
        self.client = WorkerClient(self.link, self._post, dict, counts_tokens=True)
        self.sessions = AskedSessions(self.link)

    def _to_seat(self, data: bytes) -> None:
        for messages in self.reader.take(data):
            for message in messages:
                self.played.tell(message)

    def _post(self, messages: Sequence[Any]) -> None:
        """Record messages. End each request on arrival, at the worker first."""
        self.posted += messages
        for message in messages:
            if isinstance(message, m.Submit):
                for name in message.answer_ids:
                    asyncio.get_running_loop().call_soon(self._end, name)

    def _end(self, name: m.RequestId) -> None:
        place = int(name[-1])
        token = m.TokenOut(name, 5, -0.5, 1.0, 0)
        finished = m.Finished(name, m.FinishReason.STOP, self.played.usage)
        self.client.take([token, finished])
        self.played.engine_ends(place)


async def has_turn(joined: Joined) -> None:
    session = joined.played.session
    async with joined.sessions.turn(ANN, None, session.id) as turn:
        await turns(2)
        turn.keep((8, 9))


async def is_admitted(joined: Joined) -> None:
    async with joined.client.admitted(ANN, m.RequestId("r")):
        await turns(2)


def answers(count: int) -> Callable[[Joined], Awaitable[None]]:
    async def are_read(joined: Joined) -> None:
        forks = tuple(m.Fork(m.RequestId(f"r.{n}"), n) for n in range(1, count))
        prompt = np.arange(3, dtype=np.int32)
        submit = m.Submit(m.RequestId("r.0"), prompt, SamplingParams(), forks=forks)
        asked = joined.client.generate_all([submit], OF_ANN, [None] * count, [None])
        async with asked as parts, AsyncExitStack() as stack:
            for each in parts:
                stack.push_async_callback(each.aclose)
                async for _ in each:
                    pass

    return are_read


CALLS = {
    "turn": (has_turn, Played.of_session),
    "id": (is_admitted, Played.of_one),
    "one answer": (answers(1), Played.of_one),
    "two answers": (answers(2), Played.of_two),
}


async def given_up(
    call: Callable[[Joined], Awaitable[None]], joined: Joined, at: int, gate: int
) -> None:
    """Play a call given up by its client after `at` turns; check for nothing left over. gate: turns
    before the grant."""
    played = joined.played
    calling = asyncio.ensure_future(call(joined))
    for turn in range(40):
        if turn == gate:
            played.grant()
        if turn == at:
            calling.cancel()
        await turns(1)
    assert calling.done(), "its caller waits still"
    if not calling.cancelled():
        calling.result()
    await played.settle()
    await turns(2 * max(DELAYS) + RESTED)
    assert joined.link.waiting == 0, "an ask waits for its reply"
    assert not joined.client._unread and not joined.client._own
    played.check()


@pytest.mark.parametrize("name", CALLS)
def test_call_given_up_at_any_moment_over_any_delay_holds_nothing_after(name: str) -> None:
    call, make = CALLS[name]

    async def every() -> tuple[int, int]:
        kept = left = 0
        for up, down, at, gate in product(DELAYS, DELAYS, (*MOMENTS, NEVER), GRANTED):
            try:
                joined = Joined(await make(), up, down)
                await given_up(call, joined, at, gate)
            except Exception as error:
                raise AssertionError(f"{up=} {down=} {at=} {gate=}") from error
            if at == NEVER:
                kept += 1
                if name == "turn":
                    assert joined.played.session.log.length == 7
            else:
                left += 1
        return kept, left

    assert asyncio.run(every()) == (27, 27 * len(MOMENTS))


@pytest.mark.parametrize("name", CALLS)
async def test_call_whose_registry_refuses_raises_and_holds_nothing_after(name: str) -> None:
    call, make = CALLS[name]

    played = await make()
    joined = Joined(played, 1, 1)
    played.refuse()
    with pytest.raises(ServerError, match="refused by the test"):
        await call(joined)
    await turns(RESTED)
    assert joined.link.waiting == 0
    played.check()


async def test_ask_whose_socket_ends_raises_and_so_does_a_later_one() -> None:
    joined = Joined(Played(), NEVER, 0)
    asks = [joined.link.ask(w.Admit(joined.link.number(), ANN)) for _ in range(2)]
    asks[0].cancel()
    joined.link.connection_lost(None)
    with pytest.raises(ServerError, match="lost its node's registry"):
        await asks[1]
    with pytest.raises(ServerError, match="lost its node's registry"):
        await joined.link.ask(w.Admit(joined.link.number(), ANN))
    await turns(1)
    assert joined.link.waiting == 0 and joined.ended == ["gone"]


async def test_turn_whose_answer_was_kept_keeps_it_though_its_client_leaves_then() -> None:
    played = await Played.of_session()
    played.grant()
    joined = Joined(played, 0, 3)
    calling = asyncio.ensure_future(has_turn(joined))
    while played.replies[2] == 0:
        await turns(1)
    # The registry has ended the turn, and its reply is on its way.
    calling.cancel()
    await turns(RESTED)
    assert calling.cancelled() and joined.link.waiting == 0
    assert played.session.log.length == 7
