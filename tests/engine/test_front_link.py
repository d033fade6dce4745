"""The socket between an engine and a front in another process, from the engine's end."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.apart import control as c
from tasuki.engine.apart.frames import BrokenFrame, FrameReader, frame_of
from tasuki.engine.apart.front_links import FrontLink
from tasuki.pycache.packed import EventGap, PackedEvents, PackedTree
from tasuki.transfer.control.link_status import (
    HandoverStatus,
    NodeProgress,
    PrefillNodeState,
    PrefillNodeStatus,
)
from tasuki.transfer.protocol.contract import Difference
from tasuki.transfer.reports import SenderCounters
from tests.harness.engines import submit
from tests.harness.waiting import HANG_SECONDS

LIMIT = 1 << 20


class Ended(Exception):
    """The link has ended."""


@contextmanager
def a_link(limit: int = LIMIT) -> Iterator[tuple[FrontLink, socket.socket, Callable[[], Any]]]:
    """Yield the link, the front's end, and a function for the next item: messages, or Ended with
    the reason."""
    ours, theirs = socket.socketpair()
    link = FrontLink(theirs, limit)
    come: SimpleQueue[Any] = SimpleQueue()
    link.start(come.put, lambda reason: come.put(Ended(reason)))
    try:
        yield link, ours, lambda: come.get(timeout=HANG_SECONDS)
    finally:
        ours.close()
        link.close()


def token(index: int, name: str = "a") -> m.TokenOut:
    return m.TokenOut(m.RequestId(name), 100 + index, -0.5, 1.25, index)


def read_all(end: socket.socket, count: int) -> list[Any]:
    """Return the next `count` messages."""
    reader, messages = FrameReader(), list[Any]()
    end.settimeout(HANG_SECONDS)
    while len(messages) < count:
        data = end.recv(1 << 16)
        assert data, "the link has ended"
        for frame in reader.take(data):
            messages += frame
    return messages


STATUS = HandoverStatus(
    (
        PrefillNodeStatus("a:1", "one", PrefillNodeState.CONNECTED, (), NodeProgress(0.5, 0.0)),
        PrefillNodeStatus("b:1", None, PrefillNodeState.REFUSED, (Difference("dtype", "a", "b"),)),
    ),
    {"landed": 3},
    SenderCounters(windows=2),
    {"decode": NodeProgress()},
)


@pytest.mark.parametrize(
    "messages",
    [
        [token(0), token(1), m.FlushReply(1, 4), token(0, "b"), m.FlushReply(2, 4), token(2)],
        [c.HandoverShown(STATUS), c.HandoverOver()],
        [c.EngineStands(4096, 64, "trials"), c.RequestTraced(m.RequestId("a"), "00-1-2-01")],
        [],
    ],
    ids=["a step", "a status", "control", "nothing"],
)
def test_a_frame_is_read_as_what_it_was_made_of(messages: list[Any]) -> None:
    frame = bytes(frame_of(messages))
    reader = FrameReader()
    # The frames are cut anywhere.
    pieces = [frame[:3], frame[3:5], frame[5:], frame + frame[:9], frame[9:]]
    frames = [read for piece in pieces for read in reader.take(piece)]
    assert frames == [messages] * 3


def test_a_prompt_crosses_as_an_array_that_may_be_written_to() -> None:
    asked = submit("a", np.arange(70) % 128, 8)
    ((read,),) = FrameReader().take(bytes(frame_of([asked])))
    assert isinstance(read, m.Submit)
    assert read.prompt.dtype == asked.prompt.dtype and read.prompt.flags.writeable
    np.testing.assert_array_equal(read.prompt, asked.prompt)
    assert read.sampling == asked.sampling and read.patience == asked.patience


@pytest.mark.parametrize("rows", [0, 3])
def test_what_the_cache_packs_crosses_with_its_shape_also_where_it_is_nothing(rows: int) -> None:
    numbers = np.arange(5 * rows, dtype=np.uint64).reshape(rows, 5)
    pages = np.arange(64 * rows, dtype=np.int32)
    events = PackedEvents(7, rows == 0, EventGap(1, 5), numbers, b"\0" * 48 * rows, pages)
    told = [m.EventsReply(1, events), m.TreeReply(2, PackedTree(numbers)), m.TreeReply(3, None)]
    (read, tree, none), *_ = FrameReader().take(bytes(frame_of(told)))
    np.testing.assert_array_equal(read.batch.numbers, numbers)
    np.testing.assert_array_equal(read.batch.pages, pages)
    assert read.batch.numbers.shape == numbers.shape and read.batch.numbers.dtype == numbers.dtype
    assert (read.batch.sequence, read.batch.is_snapshot, read.batch.gap) == (
        7,
        rows == 0,
        events.gap,
    )
    assert len(tree.view) == rows and none.view is None


@pytest.mark.parametrize(
    "data",
    [b"\x01\x00\x00\x00\xff", b"\x03\x00\x00\x00\x91\x92\x00", b"\x04\x00\x00\x00\x91\x92\x7f\x80"],
    ids=["no MessagePack", "cut short", "an unknown kind"],
)
def test_what_is_no_frame_is_refused(data: bytes) -> None:
    with pytest.raises(BrokenFrame):
        list(FrameReader().take(data))


def test_frames_of_several_threads_leave_whole_and_in_order() -> None:
    with a_link() as (link, front, _):
        names = [f"{number}" for number in range(4)]

        def send(name: str) -> None:
            for index in range(500):
                link.send([token(index, name)])

        senders = [threading.Thread(target=send, args=(name,)) for name in names]
        for sender in senders:
            sender.start()
        came = read_all(front, 2000)
        for sender in senders:
            sender.join()
        for name in names:
            assert [one.index for one in came if one.request_id == name] == list(range(500))


def test_what_a_slow_front_has_not_read_waits_and_comes_in_order() -> None:
    with a_link(64 << 20) as (link, front, _):
        sent = [
            [token(index) for index in range(start, start + 256)] for start in range(0, 51200, 256)
        ]
        for step in sent:
            link.send(step)
        # Far more than a socket holds: the sender did not wait for it.
        assert [one.index for one in read_all(front, 51200)] == list(range(51200))


def test_a_front_that_does_not_read_is_dead_and_holds_nobody_up() -> None:
    with a_link() as (link, _, come):
        step = [token(index) for index in range(256)]
        size = len(frame_of(step))
        for _ in range(4 * LIMIT // size):
            link.send(step)
        ended = come()
        assert isinstance(ended, Ended) and "does not read" in str(ended)
        link.send(step)


def test_a_front_that_is_gone_is_noticed_behind_what_it_had_sent() -> None:
    with a_link() as (link, front, come):
        front.sendall(frame_of([m.Abort(m.RequestId("a")), m.Drain(1)]))
        front.close()
        assert come() == [m.Abort(m.RequestId("a")), m.Drain(1)]
        ended = come()
        assert isinstance(ended, Ended) and "gone" in str(ended)
        link.send([token(0)])


def test_a_front_that_sends_what_is_no_frame_is_gone() -> None:
    with a_link() as (link, front, come):
        front.sendall(b"\x01\x00\x00\x00\xff")
        ended = come()
        assert isinstance(ended, Ended) and "no frame" in str(ended)
        link.send([token(0)])
        front.setblocking(False)
        with pytest.raises(BlockingIOError):
            front.recv(1)


def test_what_was_sent_before_the_link_closes_arrives() -> None:
    ours, theirs = socket.socketpair()
    link = FrontLink(theirs)
    ends: SimpleQueue[str] = SimpleQueue()
    link.start(lambda messages: None, ends.put)
    step = [token(index) for index in range(256)]
    for _ in range(100):
        link.send(step)
    closing = threading.Thread(target=link.close)
    closing.start()
    assert len(read_all(ours, 25600)) == 25600
    closing.join()
    assert not ours.recv(1) and ends.empty(), "closing is no loss of the front"
    ours.close()


def test_a_link_that_ended_may_be_closed_once_more() -> None:
    """Its node stops while a worker of it dies: both close it."""
    with a_link() as (link, end, come):
        end.close()
        assert isinstance(come(), Ended)
        link.close_ended()
        link.close_ended()
        link.send([token(0)])
        link.close()
