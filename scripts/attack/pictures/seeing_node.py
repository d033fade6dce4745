"""A node with a vision tower under attack, and a neighbour who asks about pictures meanwhile.

The neighbour's answers are timed before the attack and in it. Each of its pictures is new, so each
goes through the decoders. Owns the node.
"""

import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from scripts.attack.http_call import judge
from scripts.attack.tally import Tally
from scripts.attack.world import ANN, BOB, KEYS, MOST_HELD_BYTES, MOST_KEPT_BYTES, OWNER
from scripts.common.probe import resident, tree
from tests.harness.daemons import Node, flags
from tests.harness.goldens import BESIDE
from tests.harness.http_calls import Reply
from tests.harness.http_calls import ask as ask_http
from tests.harness.picture_files import data_url, picture_file

from .rows import Row

FOLDER = BESIDE / "vision-dense"
"""The checkpoint, stored beside the repository."""
_ALONE = 12
_SLOWER = 2.0
_NOISE_SECONDS = 0.15
"""Slowness of this size is a busy machine's, and so is any of a few answers."""
_WORKER = b"decoding.worker"


class SeeingNode:
    """node: the daemon. tally: gets tries and findings."""

    def __init__(self, node: Node, tally: Tally) -> None:
        self.node = node
        self._tally = tally
        self._drawn = 0

    def send(self, row: Row, key: str = ANN) -> None:
        """Send a row's request, and record a wrong reply as a finding."""
        reply = self.ask(row.path, row.body(), key)
        self._judge(row.name, reply, row.expected)

    def ask(self, path: str, body: dict[str, Any], key: str = ANN) -> Reply:
        return ask_http(
            self.node.http_address, "POST", path, body, {"Authorization": f"Bearer {key}"}
        )

    def new_picture(self, width: int = 96, height: int = 64) -> dict[str, Any]:
        """Return a chat about a picture that the node does not know."""
        self._drawn += 1
        content = picture_file(width, height) + self._drawn.to_bytes(4, "big")
        part = {"type": "image_url", "image_url": {"url": data_url(content)}}
        return {"messages": [{"role": "user", "content": [part]}], "max_tokens": 1}

    def workers(self) -> list[int]:
        """Return the ids of the node's decoding processes."""
        return [each for each in tree(self.node.pid) if _WORKER in _command(each)]

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Watch memory and the neighbour's latency during a block, and record findings."""
        alone = statistics.median(self._timed() for _ in range(_ALONE))
        before = resident(self.node.pid)
        meanwhile: list[float] = []
        over = threading.Event()
        most = before

        def neighbour() -> None:
            nonlocal most
            while not over.is_set():
                meanwhile.append(self._timed())
                most = max(most, resident(self.node.pid))

        thread = threading.Thread(target=neighbour)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()
        slow = statistics.median(meanwhile)
        if len(meanwhile) >= _ALONE and slow > _SLOWER * alone + _NOISE_SECONDS:
            self._tally.finding(f"a neighbour waits {slow:.2f} s, {alone:.2f} s alone")
        kept = resident(self.node.pid) - before
        if most - before > MOST_HELD_BYTES or kept > MOST_KEPT_BYTES:
            self._tally.finding(f"{(most - before) >> 20} MiB more, {kept >> 20} kept")
        self.node.assert_at_rest(60.0)

    def _timed(self) -> float:
        begun = time.monotonic()
        reply = self.ask("/v1/chat/completions", self.new_picture(), BOB)
        if reply.status != 200:
            self._tally.finding(f"a neighbour is refused: {reply.body[:200]!r}")
        return time.monotonic() - begun

    def _judge(self, name: str, reply: Reply, expected: tuple[tuple[int, str], ...]) -> None:
        judge(reply.status, reply.body, name, self._tally)
        kind = "" if reply.status == 200 else reply.refusal[1]
        if (reply.status, kind) not in expected:
            self._tally.finding(
                f"{name}: {reply.status} {kind} {reply.body[:200]!r}, not {expected}"
            )


@contextmanager
def seeing_node(folder: Path, tally: Tally, *more: str) -> Iterator[SeeingNode | None]:
    """Yield a node; None, noted as left out, without its checkpoint. folder: gets its keys. more:
    flags."""
    if not FOLDER.is_dir():
        tally.note("left out: no checkpoint with a tower")
        yield None
        return
    keys = folder / "keys"
    keys.write_text("".join(f"{name} {key} {scope}\n" for name, (key, scope) in KEYS.items()))
    own = (
        "--api-key",
        OWNER,
        "--api-keys",
        str(keys),
        "--http-bind",
        "127.0.0.1:0",
        "--max-message-mib",
        "64",
    )
    node = Node("serve", *flags(FOLDER, arena_mib=32), *own, *more).wait_ready()
    try:
        yield SeeingNode(node, tally)
        if node.exit_status is not None:
            tally.finding(f"the node ended with {node.exit_status}")
        if any("Traceback" in line for line in node.last_words):
            tally.finding(f"a traceback in its log: {node.last_words[-1]}")
    finally:
        node.put_down()


def _command(process: int) -> bytes:
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes()
    except OSError:
        return b""
