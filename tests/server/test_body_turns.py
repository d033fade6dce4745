"""Tests of turns for large bodies: one a round of the event loop, in order, none for a caller who
left."""

import asyncio
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import ClassVar, cast

import pytest
from aiohttp import web

from tasuki.server.auth.callers import ANYBODY
from tasuki.server.auth.limits import HeldBytes
from tasuki.server.errors import InvalidRequest
from tasuki.server.http.bounded_reading import BODY_TURNS, BodyTurns, read_body
from tasuki.server.openai.request_fields import read_fields

MIB = 2**20


async def _rounds(count: int, began: list[str]) -> list[int]:
    """Return the number of turns begun after each of `count` rounds."""
    counts = []
    for _ in range(count):
        await asyncio.sleep(0)
        counts.append(len(began))
    return counts


async def _asked(turns: BodyTurns, name: str, began: list[str]) -> None:
    await turns.turn()
    began.append(name)


async def test_a_round_begins_one_turn_in_the_order_of_asking() -> None:
    turns, began = BodyTurns(), list[str]()
    async with asyncio.TaskGroup() as group:
        for name in "abcd":
            group.create_task(_asked(turns, name, began))
        counts = await _rounds(10, began)
    assert began == ["a", "b", "c", "d"]
    assert all(after - before <= 1 for before, after in pairwise(counts))
    assert counts[-1] == 4


async def test_a_caller_that_left_takes_no_turn() -> None:
    turns, began = BodyTurns(), list[str]()
    asked = [asyncio.create_task(_asked(turns, name, began)) for name in "abc"]
    await asyncio.sleep(0)
    asked[0].cancel()
    asked[1].cancel()
    ends = await asyncio.gather(*asked, return_exceptions=True)
    assert began == ["c"] and ends[2] is None
    async with asyncio.timeout(5):
        await turns.turn()


class _Sent:
    """A request with its whole body at hand, with the attributes used by read_body()."""

    client_max_size = 64 * MIB
    content_length = None
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, pieces: int, turns: BodyTurns, read: list[int]) -> None:
        self.app = {BODY_TURNS: turns}
        self.content = self
        self._pieces = pieces
        self._read = read

    async def iter_any(self) -> AsyncIterator[bytes]:
        for number in range(self._pieces):
            self._read.append(number)
            yield bytes(MIB)


async def test_a_round_reads_one_piece_of_all_large_bodies() -> None:
    """Read one piece a round in all. A round with one piece of each connection would grow with the
    number of connections."""

    turns, read = BodyTurns(), list[int]()
    held = HeldBytes(1024 * MIB)

    async def receive() -> int:
        with held.hold(ANYBODY) as hold:
            return len(await read_body(cast(web.Request, _Sent(8, turns, read)), hold))

    async with asyncio.TaskGroup() as group:
        bodies = [group.create_task(receive()) for _ in range(16)]
        await asyncio.sleep(0)
        counts = await _rounds(16 * 8, read)
    assert [body.result() for body in bodies] == [8 * MIB] * 16
    assert all(after - before <= 1 for before, after in pairwise(counts))
    assert counts[-1] > 16 * 6


@pytest.mark.parametrize("refused", [b'{"x": [' + b"[]," * MIB + b"[]]}", b"{" * 100, b"[1]"])
def test_a_body_that_is_refused_holds_no_memory(refused: bytes) -> None:
    """Free the body: errors keep frames alive until the next collection, and a frame keeps its
    body."""
    body = bytearray(refused)
    with pytest.raises(InvalidRequest):
        read_fields(body)
    assert not body


class _Stopped(_Sent):
    """A request with a client that sends one piece and no more."""

    async def iter_any(self) -> AsyncIterator[bytes]:
        yield bytes(MIB)
        await asyncio.Event().wait()


async def test_a_body_whose_caller_leaves_holds_no_memory() -> None:
    """Hold no memory of the body, although the error keeps the frame that read it."""

    request = cast(web.Request, _Stopped(1, BodyTurns(), []))
    with HeldBytes(1024 * MIB).hold(ANYBODY) as hold:
        reading = asyncio.create_task(read_body(request, hold))
        while hold.size < MIB:
            await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError) as left:
            await reading
    bodies = [entry.locals["body"] for entry in left.traceback if "body" in entry.locals]
    assert bodies == [b""]
