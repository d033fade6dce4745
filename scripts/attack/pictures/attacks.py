"""Attacks with pictures on a node of their own: files, URLs, addresses, killed processes."""

import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from scripts.attack.attack import Attempt
from scripts.attack.pictures import rows
from scripts.attack.pictures.files import flat, url
from scripts.attack.pictures.seeing_node import FOLDER, SeeingNode, seeing_node
from scripts.attack.tally import Tally
from tasuki.model.vision.config import VisionConfig

_BUSY = (503, 529, 429)
_CALLERS = 2
_KILLED_ROUNDS = 6


def odd_pictures(attempt: Attempt) -> None:
    """Send broken, lying, large and odd files and URLs. Each has its typed reply."""
    found = [*rows.of_files(), *rows.of_urls()]
    config = VisionConfig.load(FOLDER) if FOLDER.is_dir() else None
    if config is not None:
        found += rows.of_placeholders((config.tokens.image, config.tokens.video))
    _send(attempt, found)


def picture_addresses(attempt: Attempt) -> None:
    """Send addresses that must not be fetched, to a node that fetches from this machine's name. A
    local server counts calls: none may come."""
    with _listening(attempt.tally) as port:
        _send(attempt, [*rows.of_addresses(port)], "--fetch-pictures", "localhost")


def killed_decoders(attempt: Attempt) -> None:
    """Kill the processes that decode, at any moment of a picture. A request is answered or refused,
    ends in time, and the next one works."""
    with _node(attempt.tally) as node:
        if node is None:
            return
        path = "/v1/chat/completions"
        for round_ in range(_KILLED_ROUNDS):
            over = threading.Event()

            def kill(over: threading.Event = over) -> None:
                while not over.is_set():
                    time.sleep(attempt.rng.uniform(0.0, 1.5))
                    for each in node.workers():
                        with suppress(ProcessLookupError):
                            os.kill(each, signal.SIGKILL)

            killer = threading.Thread(target=kill)
            killer.start()
            try:
                slow = url(flat(3000 + round_, 3000))
                body = {"messages": [{"role": "user", "content": [_part(slow)]}], "max_tokens": 1}
                for sent in (body, node.new_picture()):
                    reply = node.ask(path, sent)
                    attempt.tally.note(str(reply.status))
                    if reply.status not in (200, *_BUSY):
                        attempt.tally.finding(
                            f"{reply.status} {reply.body[:200]!r} of a killed one"
                        )
            finally:
                over.set()
                killer.join()
            reply = node.ask(path, node.new_picture())
            if reply.status != 200:
                attempt.tally.finding(f"{reply.status} {reply.body[:200]!r} behind a killed one")
        node.node.assert_at_rest(60.0)


def _part(address: str) -> dict[str, object]:
    return {"type": "image_url", "image_url": {"url": address}}


def _send(attempt: Attempt, found: Iterable[rows.Row], *flags: str) -> None:
    with _node(attempt.tally, *flags) as node:
        if node is None:
            return
        for _ in attempt.rounds():
            sent = [partial(node.send, row) for row in found]
            attempt.rng.shuffle(sent)
            # Every row is tried, however late.
            with node.watched(), ThreadPoolExecutor(_CALLERS) as pool:
                for done in [pool.submit(each) for each in sent]:
                    done.result()


@contextmanager
def _node(tally: Tally, *flags: str) -> Iterator[SeeingNode | None]:
    with tempfile.TemporaryDirectory() as folder, seeing_node(Path(folder), tally, *flags) as node:
        yield node


@contextmanager
def _listening(tally: Tally) -> Iterator[int]:
    """Yield the port of a local server. Record a connection to it as a finding."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        yield server.getsockname()[1]
        try:
            server.accept()[0].close()
        except BlockingIOError:
            return
        tally.finding("a local server was called")
