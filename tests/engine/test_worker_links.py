"""An engine's links to front workers: to each its own tokens, to the front every end."""

import asyncio
import gc
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import permutations
from pathlib import Path
from queue import Empty, SimpleQueue
from types import FrameType
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.apart import front_links
from tasuki.engine.apart.control import TokensMade
from tasuki.engine.apart.frames import FrameReader, frame_of
from tasuki.engine.apart.front_links import NUMBER_BYTES, WorkerLinks, opened_door
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.waiting import until

PROMPT = np.arange(3, dtype=np.int32)


class Linked:
    """An engine's side with two workers."""

    def __init__(self) -> None:
        self.received: list[Any] = []
        self.front: list[Any] = []
        self.gone: list[Any] = []
        self.links = WorkerLinks(self.received.extend, self.front.extend, self._gone)
        self.workers: dict[int, socket.socket] = {}
        self._readers: dict[int, FrameReader] = {}
        for number in (1, 2):
            self.workers[number], theirs = socket.socketpair()
            self._readers[number] = FrameReader()
            self.links.add(number, theirs)

    def _gone(self, number: int, left: tuple[m.RequestId, ...]) -> None:
        self.gone.append((number, left))

    def submit(self, number: int, *names: str) -> None:
        submits = [m.Submit(m.RequestId(name), PROMPT, SamplingParams()) for name in names]
        count = len(self.received) + len(names)
        self.workers[number].sendall(frame_of(submits))
        until(lambda: len(self.received) >= count, "the engine got no request")

    def read(self, number: int) -> list[list[Any]]:
        """Return the frames sent to the worker."""
        return [*self._readers[number].take(self.workers[number].recv(1 << 16))]


@contextmanager
def linked() -> Iterator[Linked]:
    linked = Linked()
    try:
        yield linked
    finally:
        linked.links.close()
        for worker in linked.workers.values():
            worker.close()


def test_what_is_of_no_worker_goes_to_the_front() -> None:
    with linked() as both:
        answer = [m.TokenOut(m.RequestId("front's"), 5, -0.5, 1.0, 0)]
        both.links.split(answer)
        assert both.front == answer


def test_a_worker_that_ends_at_the_door_keeps_no_other_out(tmp_path: Path) -> None:
    async def come(links: WorkerLinks) -> None:
        path = str(tmp_path / "engine")
        letting_in = asyncio.get_running_loop().create_task(links.let_in(opened_door(path)))
        _, gone = await asyncio.open_unix_connection(path)
        gone.close()
        _, coming = await asyncio.open_unix_connection(path)
        coming.write((3).to_bytes(NUMBER_BYTES, "little"))
        submit = m.Submit(m.RequestId("r"), PROMPT, SamplingParams())
        coming.write(frame_of([submit]))
        await asyncio.to_thread(until, lambda: bool(both.received), "the other did not get in")
        coming.close()
        letting_in.cancel()

    with linked() as both:
        asyncio.run(come(both.links))
        until(lambda: both.gone == [(3, (m.RequestId("r"),))], "its end was not seen")


def sampled(*names: str, first: int = 10) -> m.TokensOut:
    count = len(names)
    tokens = np.arange(first, first + count, dtype=np.int32)
    numbers = np.arange(count) / 2
    tops = {place: ((int(token), -0.5),) for place, token in enumerate(tokens)}
    return m.TokensOut(
        tuple(map(m.RequestId, names)), tokens, numbers, numbers, np.zeros(count, np.int32), tops
    )


def end(name: str) -> m.Rejected:
    return m.Rejected(m.RequestId(name), m.RequestError(m.ErrorKind.INTERNAL, "late"))


def tokens_of(frame: list[Any]) -> dict[str, tuple[int, Any]]:
    return {each.request_id: (each.token, each.top) for each in m.tokens_apart(frame)}


def test_each_worker_gets_its_own_in_one_frame_and_the_front_every_end() -> None:
    with linked() as both:
        both.submit(1, "a", "c")
        both.submit(2, "b")
        step = sampled("a", "b", "c", "of the front")
        both.links.split([step, end("b")])
        (frame,) = both.read(1)
        assert tokens_of(frame) == {"a": (10, ((10, -0.5),)), "c": (12, ((12, -0.5),))}
        (frame,) = both.read(2)
        assert tokens_of(frame[:1]) == {"b": (11, ((11, -0.5),))} and frame[1:] == [end("b")]
        *tokens, told, made = both.front
        assert tokens_of(tokens) == {"of the front": (13, ((13, -0.5),))}
        assert (told, made) == (end("b"), TokensMade(3))
        # If all tokens belong to one worker, the columns pass unchanged.
        both.links.split([sampled("a", "c")])
        ((columns,),) = both.read(1)
        assert isinstance(columns, m.TokensOut) and len(columns) == 2


def scored(name: str) -> m.PromptScored:
    none = np.zeros((1, 0))
    return m.PromptScored(
        m.RequestId(name), 1, np.zeros(1), np.ones(1, np.int32), none.astype(np.int32), none
    )


def test_forks_and_scores_go_to_who_asked_for_them() -> None:
    with linked() as both:
        fork = m.Fork(m.RequestId("b"), 1)
        submit = m.Submit(m.RequestId("a"), PROMPT, SamplingParams(), forks=(fork,))
        both.workers[1].sendall(frame_of([submit]))
        until(lambda: bool(both.received), "the engine got no request")
        both.links.split([scored("a"), sampled("a", "b"), scored("of the front"), end("b")])
        ((scores, *tokens, ended),) = both.read(1)
        assert isinstance(scores, m.PromptScored) and scores.request_id == "a"
        assert {*tokens_of(tokens)} == {"a", "b"} and ended == end("b")
        told, last, made = both.front
        assert told.request_id == "of the front" and (last, made) == (end("b"), TokensMade(2))
        both.workers[1].close()
        until(lambda: both.gone == [(1, (m.RequestId("a"),))], "its end was not seen")


def test_a_worker_that_is_gone_has_its_requests_aborted_behind_their_ends() -> None:
    with linked() as both:
        both.submit(1, "a", "c")
        both.submit(2, "b")
        both.links.split([end("c")])
        both.workers[1].close()
        until(lambda: bool(both.gone), "nobody saw the worker's end")
        assert both.gone == [(1, (m.RequestId("a"),))]
        assert both.received[-1] == m.Abort(m.RequestId("a"))
        assert both.front[0] == end("c")
        # Later tokens of the lost worker reach only the front; the other worker continues.
        both.links.split([sampled("a", "b"), end("a")])
        assert end("a") in both.front
        (frame,) = both.read(2)
        assert tokens_of(frame) == {"b": (11, ((11, -0.5),))}


def test_worker_that_is_lost_while_the_engine_ends_requests_has_the_others_aborted() -> None:
    """The engine's thread steps while the lost worker's requests are counted. The count causes
    garbage collections, and each lets that thread run."""
    names = [f"r{number}" for number in range(5_000)]
    ended = [end(name) for name in names[:100]]
    steps = threading.Semaphore(0)
    stepped: SimpleQueue[None] = SimpleQueue()
    blocked: list[str] = []

    def let_the_engine_run(phase: str, _: object) -> None:
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_name != "_lose":
            frame = frame.f_back
        if phase == "start" and frame is not None and not blocked:
            steps.release()
            try:
                stepped.get(timeout=0.5)
            except Empty:
                blocked.append("the engine waits until the requests are counted")

    with linked() as both:
        forks = tuple(m.Fork(m.RequestId(name), 1) for name in names[1:])
        submit = m.Submit(m.RequestId(names[0]), PROMPT, SamplingParams(), forks=forks)
        both.workers[1].sendall(frame_of([submit]))
        until(lambda: bool(both.received), "the engine got no request")
        thresholds = gc.get_threshold()
        gc.callbacks.append(let_the_engine_run)
        gc.set_threshold(1)
        try:
            both.workers[1].close()
            for message in ended:
                if not steps.acquire(timeout=0.5):
                    break
                both.links.split([message])
                stepped.put(None)
            gc.callbacks.remove(let_the_engine_run)
            until(lambda: bool(both.gone), "the lost worker was not seen")
        finally:
            gc.set_threshold(*thresholds)
        ((number, left),) = both.gone
        assert number == 1 and {*left} >= {*names[100:]}
        aborted = {each.request_id for each in both.received if isinstance(each, m.Abort)}
        assert aborted == {*left}


class ScriptedLink:
    """A FrontLink without a socket or a thread; the test makes the thread's calls."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.closed = False

    def start(
        self, receive: Callable[[Sequence[Any]], None], on_end: Callable[[str], None]
    ) -> None:
        self.receive, self.on_end = receive, on_end

    def send(self, messages: Sequence[Any]) -> None:
        self.sent += messages

    def close_ended(self) -> None:
        self.closed = True


EVENTS = ("take a", "take b", "end a", "end b", "lose 1", "take c", "end c", "lose 2")
BEFORE = (
    *(("take a", "take b"), ("take a", "end a"), ("take b", "end b"), ("take c", "end c")),
    *(("take b", "lose 1"), ("take c", "lose 2")),
)
"""Orders of events: a link's thread takes in order, the engine ends requests it has, a worker is
lost after its last message."""


def orders() -> list[tuple[str, ...]]:
    found = []
    for order in permutations(EVENTS):
        places = {event: place for place, event in enumerate(order)}
        if all(places[first] < places[then] for first, then in BEFORE):
            found.append(order)
    return found


def test_requests_and_losses_in_every_order_end_once_at_the_front_and_leave_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[ScriptedLink] = []

    def make(connection: socket.socket, known: object) -> ScriptedLink:
        made.append(ScriptedLink())
        return made[-1]

    monkeypatch.setattr(front_links, "FrontLink", make)
    owner = {"a": 1, "b": 1, "c": 2}
    every = orders()
    assert len(every) == 896
    for order in every:
        made.clear()
        received: list[Any] = []
        front: list[Any] = []
        links = WorkerLinks(
            received.extend, front.extend, lambda number, left, front=front: front.append(left)
        )
        mine, theirs = socket.socketpair()
        with mine, theirs:
            links.add(1, mine)
            links.add(2, theirs)
        of = dict(enumerate(made, 1))
        for event in order:
            what, _, name = event.partition(" ")
            if what == "take":
                of[owner[name]].receive([m.Submit(m.RequestId(name), PROMPT, SamplingParams())])
            elif what == "end":
                links.split([end(name)])
            else:
                of[int(name)].on_end("lost")
        ends = [each.request_id for each in front if isinstance(each, m.Rejected)]
        assert sorted(ends) == ["a", "b", "c"], order
        for number in (1, 2):
            lost = order.index(f"lose {number}")
            ended = {name for name in owner if order.index(f"end {name}") < lost}
            mine_left = {name for name, of_worker in owner.items() if of_worker == number} - ended
            assert tuple(sorted(mine_left)) in front, order
            told = {each.request_id for each in of[number].sent}
            assert told == {name for name in ended if owner[name] == number}, order
            assert of[number].closed
        aborted = {each.request_id for each in received if isinstance(each, m.Abort)}
        assert len(aborted) == sum(len(left) for left in front if isinstance(left, tuple))
        assert not links._of and not links._links, order
