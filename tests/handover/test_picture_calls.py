"""Files of pictures between two nodes over gRPC: asked for, sent in pieces, checked. Each fault
ends the transfer in bounded time, on both sides."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

import grpc
import numpy as np
import pytest

from tasuki.decode_node import sent_pictures
from tasuki.decode_node import transfers as decode_transfers
from tasuki.engine import messages as m
from tasuki.prefill_node.arriving_pictures import PIECE_BYTES, ArrivingPictures, MediaBudget
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.keys import KeyedRun, PictureSource, PromptTokens, prompt_keys
from tasuki.transfer import failpoints
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.lifecycle.deadlines import SenderDeadlines
from tests.harness.handover_nodes import SERVICE_LIMITS, Nodes, nodes, wanted

TOWER = {"tower_digest": "one", "pillow": "Pillow 13.0.0"}
CONTENTS = (bytes(range(256)) * 2400, b"short")
"""A file of three pieces, and one of a few bytes."""
QUICK = replace(SERVICE_LIMITS, deadlines=SenderDeadlines(awaiting_media=0.6))


def picture(start: int, content: bytes, announced: bytes | None = None) -> m.PromptPicture:
    """Return a picture of 2 x 3 tokens. announced: bytes of the digest; None: the content's."""
    sha256 = hashlib.sha256(content if announced is None else announced).digest()
    source = PictureSource("image", "exif", (sha256,), 64, 96, "constants")
    file = m.PictureFile(m.Media(content), m.FileCoding.PLAIN, 60, 90, f"picture at {start}")
    return m.PromptPicture(start, 2, 3, source.digest, file=file, source=source)


def asked(number: int, *pictures: m.PromptPicture) -> m.HandoverWanted:
    """Return a wanted hand-over of a prompt with these pictures."""
    tokens = PromptTokens(np.arange(250, dtype=np.int32))
    keys = prompt_keys(tokens, [KeyedRun(one.start, 6, one.digest) for one in pictures])
    return replace(wanted(number), prompt=keys, pictures=pictures)


def both(announced: bytes | None = None) -> tuple[m.PromptPicture, ...]:
    return picture(20, CONTENTS[0], announced), picture(40, CONTENTS[1])


async def reserve(pair: Nodes, number: int, *pictures: m.PromptPicture) -> m.PrefillReserve:
    pair.client.deliver(asked(number, *pictures))
    reserved = await pair.prefill.wait(m.PrefillReserve, number)
    assert isinstance(reserved, m.PrefillReserve)
    return reserved


def want(pair: Nodes, number: int, *indices: int) -> None:
    pair.service.deliver(m.PicturesWanted(m.TransferId(number), indices))


async def lost(pair: Nodes, number: int) -> m.HandoverFailed:
    failed = await pair.decode.wait(m.HandoverFailed, number)
    assert isinstance(failed, m.HandoverFailed)
    await pair.quiet()
    assert pair.service._media.held == 0
    return failed


async def test_pictures_come_when_they_are_asked_for() -> None:
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        sent = both()
        reserved = await reserve(pair, 1, *sent)
        assert [one.digest for one in reserved.pictures] == [one.digest for one in sent]
        assert not pair.prefill.of(m.PicturesCame)
        want(pair, 1, 0, 1)
        came = await pair.prefill.wait(m.PicturesCame, 1)
        assert isinstance(came, m.PicturesCame)
        assert dict(came.files) == {0: (CONTENTS[0],), 1: (CONTENTS[1],)}
        assert pair.service._media.held == sum(map(len, CONTENTS))
        await pair.hand_over(1)
        await pair.decode.wait(m.RemoteDone, 1)
        await pair.quiet()
        assert pair.service._media.held == 0


async def test_one_more_picture_may_be_asked_for_later() -> None:
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        want(pair, 1, 1)
        await pair.prefill.wait(m.PicturesCame, 1)
        want(pair, 1, 0)
        while len(pair.prefill.of(m.PicturesCame, 1)) < 2:
            await asyncio.sleep(0.01)
        await pair.hand_over(1)
        await pair.decode.wait(m.RemoteDone, 1)
        await pair.quiet()


async def test_bytes_of_another_picture_end_the_transfer() -> None:
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both(announced=b"others"))
        want(pair, 1, 0)
        assert "another digest" in (await lost(pair, 1)).reason
        assert not pair.prefill.of(m.PicturesCame)


Send = Callable[..., Awaitable[None]]


async def silent(*_: Any) -> None:
    await asyncio.sleep(60)


def paced(seconds: float) -> Send:
    """Return send_pictures with a pause behind each piece."""

    async def send(stub: Any, head: Any, pictures: Any, on_piece: Any) -> None:
        call = stub.Pictures()
        for index, (file,) in pictures:
            content = file.content()
            for start in range(0, len(content), PIECE_BYTES):
                head.picture, head.length = index, len(content)
                head.data = content[start : start + PIECE_BYTES]
                await call.write(head)
                on_piece()
                await asyncio.sleep(seconds)
        await call.done_writing()
        await call

    return send


async def test_a_peer_that_sends_no_piece_ends_at_the_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decode_transfers, "send_pictures", silent)
    async with nodes(pictures=TOWER, service_limits=QUICK) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        want(pair, 1, 0)
        assert "pieces are awaited" in (await lost(pair, 1)).reason
        ended = await pair.prefill.wait(m.PrefillEnd, 1)
        assert isinstance(ended, m.PrefillEnd) and ended.given_up is m.LossCause.STALLED


async def test_a_slow_peer_is_not_a_silent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four pieces, each within the bound, take longer than the bound together."""
    monkeypatch.setattr(decode_transfers, "send_pictures", paced(0.3))
    async with nodes(pictures=TOWER, service_limits=QUICK) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        want(pair, 1, 0, 1)
        await pair.prefill.wait(m.PicturesCame, 1)
        await pair.hand_over(1)
        await pair.decode.wait(m.RemoteDone, 1)
        await pair.quiet()


async def test_a_decode_node_lost_while_it_sends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_transfers, "send_pictures", paced(0.2))
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        want(pair, 1, 0)
        while not pair.service._media.held:
            await asyncio.sleep(0.01)
        connection = pair.client.links[0].connection
        assert connection is not None
        connection.end()
        await pair.prefill.wait(m.PrefillEnd, 1)
        await lost(pair, 1)


async def test_a_prefill_node_lost_while_it_awaits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_transfers, "send_pictures", paced(0.2))
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        want(pair, 1, 0)
        while not pair.service._media.held:
            await asyncio.sleep(0.01)
        await pair.server.stop(0)
        await pair.decode.wait(m.HandoverFailed, 1)


@pytest.mark.parametrize("place", sorted(failpoints.PIECE_PLACES, key=lambda place: place.value))
async def test_a_defect_at_a_piece_ends_its_transfer_alone(
    place: failpoints.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "ARMED", failpoints.parse(f"{place.value}=raise"))
            want(pair, 1, 0)
            await lost(pair, 1)
        await reserve(pair, 2, *both())
        want(pair, 2, 0, 1)
        await pair.prefill.wait(m.PicturesCame, 2)
        await pair.hand_over(2)
        await pair.decode.wait(m.RemoteDone, 2)
        await pair.quiet()


async def test_a_cancelled_request_stops_its_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_transfers, "send_pictures", paced(0.2))
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        want(pair, 1, 0)
        while not pair.service._media.held:
            await asyncio.sleep(0.01)
        pair.client.deliver(m.HandoverCancelled(m.TransferId(1)))
        await pair.prefill.wait(m.PrefillEnd, 1)
        await pair.quiet()
        assert pair.service._media.held == 0


async def test_an_unreadable_file_is_not_sent() -> None:
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        one = picture(20, CONTENTS[0])
        assert one.file is not None
        broken = replace(one.file, data=m.Media(b"*"), coding=m.FileCoding.BASE64)
        await reserve(pair, 1, replace(one, file=broken))
        want(pair, 1, 0)
        assert "not readable" in (await lost(pair, 1)).reason


async def test_towers_that_differ_pair_for_text_alone() -> None:
    def other(contract: Any) -> Any:
        return replace(contract, pictures={**TOWER, "tower_digest": "two"})

    async with nodes(pictures=TOWER, decode_contract=other) as pair:
        await pair.connected()
        pair.client.deliver(asked(1, *both()))
        failed = await pair.decode.wait(m.HandoverFailed, 1)
        assert isinstance(failed, m.HandoverFailed)
        assert failed.cause is m.LossCause.NO_NODE and not failed.elsewhere
        assert not pair.prefill.of(m.PrefillReserve)
        await pair.hand_over(2)
        await pair.decode.wait(m.RemoteDone, 2)
        await pair.quiet()


async def test_a_prefill_node_believes_no_peer_with_another_tower(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def other(contract: Any) -> Any:
        return replace(contract, pictures={})

    async with nodes(pictures=TOWER, decode_contract=other) as pair:
        await pair.connected()
        connection = pair.client.links[0].connection
        assert connection is not None
        connection.sees_pictures = True
        pair.client.deliver(asked(1, *both()))
        failed = await pair.decode.wait(m.HandoverFailed, 1)
        assert isinstance(failed, m.HandoverFailed) and "compare towers" in failed.reason
        pair.client.deliver(m.FetchWanted(*fetch_of(pair)))
        await pair.decode.wait(m.FetchLost, 2)
        assert not pair.prefill.of(m.PrefillReserve) and not pair.prefill.of(m.FetchReserve)


def fetch_of(pair: Nodes) -> tuple[Any, ...]:
    """Return the fields of a wanted fetch of a prefix with a picture."""
    request = m.FetchRequest(m.TransferId(2), 3, b"salt")
    return request, asked(2, *both()).prompt, pair.client.links[0].target, 5.0


async def test_a_call_that_nobody_asked_for_is_refused() -> None:
    async with nodes(pictures=TOWER) as pair:
        await pair.connected()
        await reserve(pair, 1, *both())
        connection = pair.client.links[0].connection
        assert connection is not None

        async def pieces(**names: Any) -> AsyncIterator[pb.PicturePiece]:
            yield pb.PicturePiece(room=1, generation=11, length=1, data=b"1", **names)

        for named in (connection.id, "another"):
            with pytest.raises(grpc.aio.AioRpcError, match="no pictures are asked for"):
                await connection.stub.Pictures(pieces(connection_id=named))
        await pair.hand_over(1)
        await pair.decode.wait(m.RemoteDone, 1)
        await pair.quiet()


WANTED = (m.HandedPicture(20, 2, 3, "image", "exif", b"d" * 32, ()),)  # type: ignore[arg-type]


def arriving(content: bytes, budget: MediaBudget | None = None) -> ArrivingPictures:
    file = m.FileIdentity(hashlib.sha256(content).digest(), 60, 90)
    handed = [replace(WANTED[0], files=(file,))]
    return ArrivingPictures(1, [0], handed, budget or MediaBudget())


LONG = CONTENTS[0]


@pytest.mark.parametrize(
    ("piece", "reason"),
    [
        ({"length": len(LONG), "data": LONG[:100]}, "a piece of 100 bytes"),
        ({"length": len(LONG), "data": LONG[: PIECE_BYTES + 1]}, "bytes of the file are left|left"),
        ({"length": 0, "data": b""}, "a picture of 0 bytes"),
        ({"length": 1 << 31, "data": LONG[:PIECE_BYTES]}, "at most"),
        ({"length": len(LONG), "data": LONG[:PIECE_BYTES], "picture": 1}, "picture and file"),
        ({"length": len(LONG), "data": LONG[:PIECE_BYTES], "file": 1}, "picture and file"),
    ],
)
def test_a_piece_out_of_bounds_is_refused(piece: dict[str, Any], reason: str) -> None:
    with pytest.raises(PeerInvalid, match=reason):
        arriving(LONG).take(pb.PicturePiece(**piece))


def test_pieces_are_held_within_the_budget() -> None:
    budget = MediaBudget(most=PIECE_BYTES)
    came = arriving(LONG, budget)
    came.take(pb.PicturePiece(length=len(LONG), data=LONG[:PIECE_BYTES]))
    with pytest.raises(PeerInvalid, match="more than"):
        came.take(pb.PicturePiece(length=len(LONG), data=LONG[PIECE_BYTES : 2 * PIECE_BYTES]))
    assert budget.held == PIECE_BYTES
    budget.release(1)
    assert budget.held == 0


def test_a_piece_behind_the_last_is_refused() -> None:
    came = arriving(b"1")
    came.take(pb.PicturePiece(length=1, data=b"1"))
    assert came.is_complete and came.files() == {0: (b"1",)}
    with pytest.raises(PeerInvalid, match="behind the last"):
        came.take(pb.PicturePiece(length=1, data=b"1"))


def test_both_nodes_cut_files_alike() -> None:
    assert sent_pictures.PIECE_BYTES == PIECE_BYTES
