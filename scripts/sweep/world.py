"""The daemons of a sweep: a victim that dies where it is armed to, and those that must not care.

Owns processes. Victims are forked, for each point needs a new life. Thread rule: one thread.
"""

import os
import select
import time
from collections.abc import Sequence
from typing import TypeVar

from scripts.pair import Daemons
from tasuki.cli.launcher import Daemon
from tasuki.proto import inference_pb2 as pb
from tasuki.transfer.failpoints import VARIABLE
from tests.harness.daemons import Node, flags, kept_address
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.waiting import HANG_SECONDS, until

CHUNK = 64
NodeKind = TypeVar("NodeKind", bound=Node)


class Victim(Node):
    """A daemon that begins each life armed. Its address stays."""

    def __init__(self, command: str, *flags: str) -> None:
        self.armed = ""
        self._dead = False
        super().__init__(command, *flags, bind=kept_address(), launch=self._armed_daemon)

    def _armed_daemon(self, command: str, flags: Sequence[str], bind: str) -> Daemon:
        return ForkedDaemon(command, flags, bind, {VARIABLE: self.armed})

    def reborn(self, armed: str) -> None:
        """A new life that dies at `armed`, a point; the one before ends here if it has not."""
        if self._dead:
            self._ended()
        else:
            self.kill()
        self._dead = False
        self.armed = f"{armed}=kill"
        self.start_again()

    def stop(self) -> int:
        if not self._dead:
            return super().stop()
        self._ended()
        return 0

    def dies(self) -> float:
        """Wait for its death by itself; when that was, on the monotonic clock. Its client lives
        on, and may read its messages."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            # It was gone, and its parent had seen that, before anybody looked.
            self._dead = True
            return time.monotonic()
        try:
            poller = select.poll()
            poller.register(handle, select.POLLIN)
            assert poller.poll(1000 * HANG_SECONDS), f"{self.armed} was not reached"
            died = time.monotonic()
        finally:
            os.close(handle)
        self._dead = True
        return died


def victim_flags() -> list[str]:
    return [*flags(arena_mib=24), "--prefill-chunk-tokens", str(CHUNK)]


def decode_flags(prefill: Node) -> list[str]:
    return [*victim_flags(), "--local-prefill-tokens", "0", "--prefill", prefill.address]


class World(Daemons):
    """Two pairs: a sender that dies beside `receiver`, and a receiver that dies beside `sender`,
    which serves `other` too."""

    def __init__(self) -> None:
        self._begun: list[Node] = []
        prefill = [*victim_flags(), "--layers-per-window", "1"]
        self.mortal_sender = self._add(Victim("prefill", *prefill))
        self.receiver = self._add(self._standing("decode", *decode_flags(self.mortal_sender)))
        self.sender = self._add(self._standing("prefill", *prefill))
        self.other = self._add(self._standing("decode", *decode_flags(self.sender)))
        self.mortal_receiver = self._add(Victim("decode", *decode_flags(self.sender)))
        for decode in (self.receiver, self.other, self.mortal_receiver):
            self.met(decode)

    @staticmethod
    def _standing(command: str, *flags: str) -> Node:
        return Node(command, *flags)

    def _add(self, node: NodeKind) -> NodeKind:
        node.wait_ready()
        self._begun.append(node)
        return node

    @property
    def nodes(self) -> tuple[Node, ...]:
        return tuple(reversed(self._begun))

    def met(self, decode: Node) -> None:
        """Wait until it is connected to its prefill node."""
        connected = pb.PREFILL_NODE_STATE_CONNECTED
        until(lambda: state(decode) == connected, f"{decode.address} is alone")


def state(decode: Node) -> int:
    """What the decode node knows of its prefill node."""
    (node,) = decode.stats().prefill_nodes
    return int(node.state)
