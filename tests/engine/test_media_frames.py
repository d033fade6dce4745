"""Media of pictures between processes: sealed blocks beside frames, and no descriptor left."""

import asyncio
import os
import random
import socket
from array import array
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.engine.apart import frames
from tasuki.engine.apart.frame_protocol import FrameProtocol
from tasuki.engine.apart.frames import (
    BrokenFrame,
    FrameReader,
    OversizedFrame,
    frame_of,
    submit_frame,
)
from tasuki.engine.apart.front_links import FrontLink, WorkerLinks
from tasuki.engine.apart.media_frames import MOST_BLOCKS, ArrivedMedia
from tasuki.engine.messages.media import Media, MediaBlock, UnsealedBlock, plain, sealed
from tests.harness.engines import submit
from tests.harness.picture_files import picture_file
from tests.harness.tiny_pictures import RULES, Prompt, assert_idle, digest, encoder, seeing_engine
from tests.harness.waiting import HANG_SECONDS, until

SIZE = (2 * RULES.factor, 2 * RULES.factor)


def open_media() -> list[str]:
    """Return the blocks open in this process."""
    found = []
    for handle in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{handle}"))
        except FileNotFoundError:
            continue
    return [target for target in found if "tasuki-media" in target]


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    yield
    until(lambda: not open_media(), "blocks stay open", 20.0)


def pictured(name: str, media: Sequence[Media], picture: int = 0) -> m.Submit:
    """Return a request of as many pictures of 2 x 2 tokens. picture: of the first one's name."""
    made = Prompt().text(range(1, 20))
    for _ in media:
        made.picture(name, 2, 2).text(range(30, 34))
    pictures = [
        m.PromptPicture(
            *(one.start, 2, 2, digest(f"{picture + index}", 2, 2)),
            file=m.PictureFile(held, m.FileCoding.PLAIN, SIZE[1], SIZE[0], "messages[0]"),
        )
        for index, (one, held) in enumerate(zip(made.pictures, media, strict=True))
    ]
    return submit(name, made.tokens, 3, pictures=tuple(pictures))


def contents(message: m.Submit) -> list[bytes]:
    return [one.file.data.content() for one in message.pictures if one.file is not None]


def send(end: socket.socket, data: bytes | bytearray, handles: Sequence[int]) -> None:
    """Send a frame with descriptors, and close those that are no block's."""
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", handles))] if handles else []
    sent = end.sendmsg([data], rights)
    end.sendall(data[sent:])


def send_messages(end: socket.socket, messages: Sequence[Any]) -> None:
    data, blocks = submit_frame(messages)
    send(end, data, [block.handle for block in blocks])


@contextmanager
def linked() -> Iterator[tuple[socket.socket, SimpleQueue[Any], FrontLink]]:
    """Yield a front's end, and what the engine's end receives: messages, or its end's reason."""
    ours, theirs = socket.socketpair()
    link, come = FrontLink(theirs), SimpleQueue[Any]()
    link.start(come.put, come.put)
    try:
        yield ours, come, link
    finally:
        ours.close()
        link.close()


def test_media_come_whole_whatever_held_them() -> None:
    first, second = os.urandom(1 << 20), os.urandom(300_000)
    with linked() as (front, come, _):
        cases = [sealed([first, second, first]), plain([first, second, first])]
        # One of a stored turn's block, and a new one.
        cases.append([*sealed([first]), *plain([second]), *sealed([first])])
        for media in cases:
            messages = [m.Abort(m.RequestId("a")), pictured("r", media), m.Abort(m.RequestId("b"))]
            send_messages(front, messages)
            kinds, got = [*map(type, messages)], come.get(timeout=HANG_SECONDS)
            assert [*map(type, got)] == kinds
            assert contents(got[1]) == [first, second, first]
            assert got[1].pictures[0].digest == messages[1].pictures[0].digest
            del got


def test_a_text_request_has_no_byte_of_pictures() -> None:
    text = submit("r", range(1, 20), 3)
    assert b"pictures" not in frame_of([text])
    (again,) = FrameReader().take(frame_of([text]))
    assert again[0].pictures == () and again[0].prompt.tolist() == [*range(1, 20)]


def test_more_blocks_than_a_frame_may_have_are_gathered() -> None:
    media = [one for index in range(MOST_BLOCKS + 9) for one in sealed([bytes([index])])]
    with linked() as (front, come, _):
        _, blocks = submit_frame([pictured("r", media)])
        assert len(blocks) == MOST_BLOCKS
        del blocks
        send_messages(front, [pictured("r", media)])
        (got,) = come.get(timeout=HANG_SECONDS)
        assert contents(got) == [bytes([index]) for index in range(len(media))]
        del got


def unsealed(size: int) -> int:
    handle = os.memfd_create("tasuki-media-unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(handle, size)
    return handle


def short(size: int) -> int:
    block = MediaBlock.of([b"x" * (size - 1)])
    return os.dup(block.handle)


def pipe(_: int) -> int:
    reading, writing = os.pipe()
    os.close(writing)
    return reading


@pytest.mark.parametrize("made", [unsealed, short, pipe])
def test_a_block_that_may_change_refuses_its_request_alone(made: Any) -> None:
    with linked() as (front, come, _):
        data, blocks = submit_frame([pictured("r", plain([b"x" * 100]))])
        handle = made(blocks[0].size)
        send(front, data, [handle])
        os.close(handle)
        (got,) = come.get(timeout=HANG_SECONDS)
        absence = got.pictures[0].file.data.absence
        assert absence is not None and (
            "seals" in absence or "99 bytes" in absence or "memfd" in absence
        )
        engine = seeing_engine()
        engine.post(got)
        error = engine.all_said(m.Rejected)[0].error
        assert error.kind is m.ErrorKind.OVERLOADED and "did not arrive" in error.message
        send_messages(front, [m.Abort(m.RequestId("next"))])
        assert come.get(timeout=HANG_SECONDS) == [m.Abort(m.RequestId("next"))]


def test_missing_descriptors_refuse_their_request_alone() -> None:
    media = [*sealed([b"one"]), *sealed([b"two"])]
    with linked() as (front, come, _):
        data, blocks = submit_frame([pictured("r", media)])
        send(front, data, [blocks[0].handle])
        (got,) = come.get(timeout=HANG_SECONDS)
        assert "1 of 2 descriptors" in got.pictures[0].file.data.absence
        send_messages(front, [pictured("s", media)])
        (got,) = come.get(timeout=HANG_SECONDS)
        assert contents(got) == [b"one", b"two"]
        del got


BROKEN = {
    "stray": (frame_of([m.Abort(m.RequestId("a"))]), 1),
    "none came": (submit_frame([pictured("r", plain([b"x"]))])[0], 0),
    "beyond the bound": ((1 << 31).to_bytes(4, "little"), 0),
    "half a frame": (submit_frame([pictured("r", plain([b"x"]))])[0][:-3], 1),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_or_dead_front_leaves_no_descriptor(name: str) -> None:
    data, handles = BROKEN[name]
    with linked() as (front, come, _):
        block = MediaBlock.of([b"x"])
        send(front, data, [block.handle] * handles)
        del block
        if name == "half a frame":
            until(lambda: len(open_media()) == 1, "the descriptor did not come")
            front.close()
        while not isinstance(reason := come.get(timeout=HANG_SECONDS), str):
            pass
        assert ("gone" if name == "half a frame" else "what is no frame") in reason


def test_a_frame_beyond_its_bound_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frames, "MOST_FRAME_BYTES", 100)
    with pytest.raises(OversizedFrame, match="larger than 100"):
        frame_of([submit("r", range(1, 100), 3)])
    with pytest.raises(BrokenFrame, match="beyond 100"):
        [*FrameReader().take((101).to_bytes(4, "little"))]


class Recorded(FrameProtocol):
    def __init__(self, media: ArrivedMedia | None = None) -> None:
        media = ArrivedMedia() if media is None else media
        super().__init__("a peer", FrameReader.of_requests(media), media)
        self.got: list[Any] = []
        self.over = asyncio.Event()

    def taken(self, messages: Sequence[Any]) -> None:
        self.got += messages

    def ended(self, why: Exception | None) -> None:
        self.over.set()


def test_frames_keep_their_order_before_a_peer_that_reads_late() -> None:
    """Frames of text and of pictures take turns, and fill the socket's buffer many times."""

    async def exchange() -> tuple[list[Any], list[Any]]:
        loop = asyncio.get_running_loop()
        ends = socket.socketpair()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 12)
        _, sender = await loop.create_unix_connection(Recorded, sock=ends[0])
        sent: list[Any] = []
        draw = random.Random(1)
        for index in range(200):
            name = str(index)
            message: Any = m.Abort(m.RequestId(name * draw.randint(1, 2000)))
            if draw.random() < 0.5:
                media = sealed([os.urandom(10) for _ in range(draw.randint(1, 3))])
                message = pictured(name, media)
            sender.write(*submit_frame([message]))
            sent.append(message)
        sender.close()
        _, reader = await loop.create_unix_connection(Recorded, sock=ends[1])
        await asyncio.wait_for(reader.over.wait(), HANG_SECONDS)
        await asyncio.wait_for(sender.over.wait(), HANG_SECONDS)
        return sent, reader.got

    sent, got = asyncio.run(exchange())
    assert len(sent) == len(got) == 200
    for one, other in zip(sent, got, strict=True):
        if isinstance(one, m.Submit):
            assert (one.request_id, contents(one)) == (other.request_id, contents(other))
        else:
            assert one == other


def test_a_lost_peer_frees_frames_not_sent_yet() -> None:
    async def lose() -> None:
        loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        _, sender = await loop.create_unix_connection(Recorded, sock=ours)
        for _ in range(300):
            sender.write(*submit_frame([pictured("r" * 3000, sealed([b"x"]))]))
        assert len(open_media()) > 1
        theirs.close()
        await asyncio.wait_for(sender.over.wait(), HANG_SECONDS)

    asyncio.run(lose())


def test_a_turn_s_block_that_comes_again_keeps_one_descriptor() -> None:
    received: list[Any] = []
    links = WorkerLinks(received.extend, received.extend, lambda *_: None)
    ends = [socket.socketpair() for _ in range(2)]
    for number, (_, theirs) in enumerate(ends):
        links.add(number, theirs)
    media = sealed([b"a picture"])
    for turn in range(6):
        send_messages(ends[turn % 2][0], [pictured(str(turn), media)])
    until(lambda: len(received) == 6, "a request did not arrive")
    # The sender's and the receiver's.
    assert len(open_media()) == 2
    assert all(contents(message) == [b"a picture"] for message in received)
    for ours, _ in ends:
        ours.close()
    links.close()
    received.clear()


def test_parts_beyond_a_block_are_refused() -> None:
    block = MediaBlock.of([b"four"])
    with pytest.raises(UnsealedBlock, match=r"\[1, 5\) lie outside a block of 4 bytes"):
        Media.part(block, 1, 4)
    assert Media.part(block, 1, 3).content() == b"our"


@pytest.mark.parametrize("count", [150, pytest.param(1000, marks=pytest.mark.slow)])
def test_requests_with_aborts_leave_nothing(count: int) -> None:
    """Requests of one to three pictures, some broken, some shown again, aborted at any time."""
    draw = random.Random(7)
    files = [picture_file(*SIZE, format="PNG") + bytes([index]) for index in range(40)]
    files += [b"no picture", files[0][:-60]]
    engine = seeing_engine(prefill_chunk_tokens=64)
    asked: list[str] = []
    with linked() as (front, come, _):
        for index in range(count):
            names = [draw.randrange(len(files)) for _ in range(draw.randint(1, 3))]
            media = draw.choice([plain, sealed])([files[name] for name in names])
            send_messages(front, [pictured(f"{index}", media, 100 * names[0])])
            asked.append(f"{index}")
            if draw.random() < 0.5:
                gone = asked.pop(draw.randrange(len(asked)))
                send_messages(front, [m.Abort(m.RequestId(gone))])
            post_all(engine, come)
            engine.steps(draw.randint(0, 3))
        for _ in range(100_000):
            post_all(engine, come)
            engine.step()
            if len(ended(engine)) == count:
                break
        engine.run()
        engine.assert_at_rest()
        assert_idle(engine)
    assert ended(engine) == {str(index) for index in range(count)}
    encoder(engine).close()


def ended(engine: Any) -> set[str]:
    """Return the requests that ended."""
    return {end.request_id for end in (*engine.all_said(m.Finished), *engine.all_said(m.Rejected))}


def post_all(engine: Any, come: "SimpleQueue[Any]") -> None:
    """Pass all received messages to the engine."""
    while True:
        try:
            messages = come.get(timeout=0.002)
        except Empty:
            return
        for message in messages:
            engine.post(message)
