"""An engine in a process of its own: its messages are plain values, and a socket carries them."""

import socket
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.apart import control as c
from tasuki.engine.apart.frames import FrameReader, frame_of
from tasuki.engine.apart.front_links import FrontLink
from tasuki.engine.assembly.engines import build_cache, build_fused_engine
from tasuki.engine.thread import EngineThread
from tasuki.pycache.packed import PackedEvents
from tests.harness.engines import Lone, engine_config, submit, tiny_parts
from tests.harness.fork_server import forked
from tests.harness.waiting import HANG_SECONDS

PROMPTS = {name: np.arange(start, start + 70) % 128 for name, start in (("a", 0), ("b", 31))}
ASKED: list[m.Inbox] = [
    m.WatchCache(1, "all"),
    *(submit(name, prompt, 8) for name, prompt in PROMPTS.items()),
    submit("long", [1] * 5000, 8),
]
THEN: list[m.Inbox] = [
    m.TreeQuery(2, 64),
    m.CountersQuery(3),
    m.ReadEvents(4, 0),
    m.FlushCache(5),
    m.ReadEvents(6, 0),
    m.Drain(7),
]


def serve(connection: socket.socket, folder: Path) -> None:
    """Run the other process: each delivery is one frame."""
    config, parts = engine_config(folder), tiny_parts()
    engine = build_fused_engine(config, parts, build_cache(config, parts))
    link, asked, over = FrontLink(connection), threading.Event(), threading.Event()
    thread = EngineThread(engine, link.send, lambda reason: over.set())

    def receive(messages: Sequence[Any]) -> None:
        for message in messages:
            if isinstance(message, c.EndEngine):
                over.set()
            else:
                thread.post(message)
        asked.set()

    link.start(receive, lambda reason: over.set())
    link.send([c.FrontProbe()])
    # All requests sent before the first step are admitted in it together.
    asked.wait(HANG_SECONDS)
    thread.start()
    over.wait()
    thread.stop()
    link.close()


class Frames:
    """This process's end."""

    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(HANG_SECONDS)
        self._socket = connection
        self._reader = FrameReader()
        self._come: deque[list[Any]] = deque()

    def send(self, messages: Sequence[Any]) -> None:
        self._socket.sendall(frame_of(messages))

    def receive(self) -> list[Any]:
        while not self._come:
            data = self._socket.recv(1 << 16)
            assert data, "the engine's process has ended"
            self._come.extend(self._reader.take(data))
        return self._come.popleft()


def through_a_socket(folder: Path) -> list[Sequence[m.Outbox]]:
    """Return every delivery, until the drain that ends THEN is answered."""
    ours, theirs = socket.socketpair()
    process = forked(serve, theirs, folder)
    theirs.close()
    try:
        frames = Frames(ours)
        deliveries: list[Sequence[m.Outbox]] = []

        def until(kind: type, count: int) -> None:
            seen = 0
            while seen < count:
                deliveries.append(frames.receive())
                seen += sum(isinstance(message, kind) for message in deliveries[-1])

        frames.send(ASKED)
        assert frames.receive() == [c.FrontProbe()]
        until(m.Finished, len(PROMPTS))
        # The events are read with the opened watch.
        (watch,) = {e.watch for d in deliveries for e in d if isinstance(e, m.WatchOpened)}
        frames.send(with_watch(watch))
        until(m.Drained, 1)
        frames.send([c.EndEngine()])
        process.join(HANG_SECONDS)
        assert process.exitcode == 0
        return deliveries
    finally:
        process.kill()
        process.join()
        ours.close()


def with_watch(watch: int) -> list[m.Inbox]:
    return [
        m.ReadEvents(message.query_id, watch) if isinstance(message, m.ReadEvents) else message
        for message in THEN
    ]


def in_this_process(folder: Path) -> list[m.Outbox]:
    lone = Lone(engine_config(folder), parts=tiny_parts())
    for message in ASKED:
        lone.post(message)
    lone.run()
    (opened,) = lone.all_said(m.WatchOpened)
    for message in with_watch(opened.watch):
        lone.post(message)
    lone.run()
    return lone.said


def essence(message: m.Outbox) -> object:
    """Return the parts of a message that are equal in each run. Times and the last bits of logits
    are not."""
    match message:
        case m.TokenOut():
            return message.request_id, message.index, message.token
        case m.Finished():
            return message.request_id, message.reason, message.usage.hit, len(message.life)
        case m.EventsReply(query, batch):
            return query, batch.sequence, batch.is_snapshot, list(batch)
        case m.TreeReply(query, view):
            assert view is not None
            return query, list(view)
        case m.StatsReply():
            return message.pages, message.tree, message.requests
        case _:
            return message


def test_an_engine_in_another_process_says_the_same(tmp_path: Path) -> None:
    deliveries = through_a_socket(tmp_path)
    here = in_this_process(tmp_path)
    there = [message for delivery in deliveries for message in m.tokens_apart(delivery)]
    assert all(deliveries), "nothing was delivered for nothing"
    assert [essence(message) for message in there] == [essence(message) for message in here]
    events = [e.batch for e in there if isinstance(e, m.EventsReply)]
    assert isinstance(events[0], PackedEvents) and len(events[0]) > 0
    assert [event.kind for event in events[1]] == ["cleared"]
    # Both requests were decoded in the same steps, and each step's tokens came at once.
    tokens = [
        sum(isinstance(e, m.TokenOut) for e in m.tokens_apart(delivery)) for delivery in deliveries
    ]
    assert tokens.count(2) >= 7


PLAIN = (bool, int, float, str, bytes, type(None), m.Media)
"""Media pass between processes beside their frame."""


def bound_to_a_process(hint: Any, path: str, seen: set[Any]) -> Iterator[str]:
    """Yield the path and type of each field with values bound to one process."""
    hint = getattr(hint, "__supertype__", hint)
    if hint is Any:
        yield f"{path}: {hint}"
    elif hint in seen or get_origin(hint) is np.ndarray:
        return
    elif get_origin(hint) is not None:
        for inner in get_args(hint):
            if inner is not ...:
                yield from bound_to_a_process(inner, path, seen)
    elif is_dataclass(hint) or issubclass(hint, msgspec.Struct):
        seen.add(hint)
        for name, inner in get_type_hints(hint).items():
            yield from bound_to_a_process(inner, f"{path}.{name}", seen)
    elif not (isinstance(hint, type) and (hint in PLAIN or issubclass(hint, Enum))):
        yield f"{path}: {hint}"


def test_a_message_holds_nothing_that_lives_in_one_process() -> None:
    kinds = get_args(m.Inbox) + get_args(m.Outbox) + c.FRONT_CONTROL + c.ENGINE_CONTROL
    faults = [fault for kind in kinds for fault in bound_to_a_process(kind, kind.__name__, set())]
    assert len(kinds) > 80 and not faults, "\n".join(faults)
