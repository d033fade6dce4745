"""An engine's links to front workers: to each its own tokens, to the front every end."""

import asyncio
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.apart.codec import FrameReader, frame_of
from tasuki.engine.apart.control import TokensMade
from tasuki.engine.apart.worker_links import NUMBER_BYTES, WorkerLinks, opened_door
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
        """The frames of what the worker was sent."""
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


def drawn(*names: str, first: int = 10) -> m.TokensOut:
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
        step = drawn("a", "b", "c", "of the front")
        both.links.split([step, end("b")])
        (frame,) = both.read(1)
        assert tokens_of(frame) == {"a": (10, ((10, -0.5),)), "c": (12, ((12, -0.5),))}
        (frame,) = both.read(2)
        assert tokens_of(frame[:1]) == {"b": (11, ((11, -0.5),))} and frame[1:] == [end("b")]
        *tokens, told, made = both.front
        assert tokens_of(tokens) == {"of the front": (13, ((13, -0.5),))}
        assert (told, made) == (end("b"), TokensMade(3))
        # Where all are one worker's, columns pass as they are.
        both.links.split([drawn("a", "c")])
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
        both.links.split([scored("a"), drawn("a", "b"), scored("of the front"), end("b")])
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
        # What still comes for it reaches the front alone; the other goes on.
        both.links.split([drawn("a", "b"), end("a")])
        assert end("a") in both.front
        (frame,) = both.read(2)
        assert tokens_of(frame) == {"b": (11, ((11, -0.5),))}
