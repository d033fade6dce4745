"""The daemons of a sweep: victims die at a chosen point of a transfer, and the other nodes must
continue.

Owns processes. Victims are forked, because each point needs a new process. Thread rule: one thread.
"""

import os
import select
import time
from collections.abc import Sequence

from scripts.common.daemons import Daemons
from tasuki.cli.launcher import Daemon
from tasuki.proto import inference_pb2 as pb
from tasuki.transfer.failpoints import VARIABLE
from tests.harness.daemons import Node, flags, kept_address
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.waiting import HANG_SECONDS, until

CHUNK = 64


class Victim(Node):
    """A daemon killing itself at a chosen point. Restarts keep its address."""

    def __init__(self, command: str, *flags: str) -> None:
        self.armed = ""
        self._dead = False
        super().__init__(command, *flags, bind=kept_address(), launch=self._armed_daemon)

    def _armed_daemon(self, command: str, flags: Sequence[str], bind: str) -> Daemon:
        return ForkedDaemon(command, flags, bind, {VARIABLE: self.armed})

    def reborn(self, armed: str) -> None:
        """Restart the daemon, to be killed at the point `armed`. The previous process is killed now
        if it has not ended."""
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
        """Wait for the daemon's own death, and return its time on the monotonic clock. The daemon's
        client stays open and may read the messages received before. Raises AssertionError if it
        does not die."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            # The process was gone, and its parent had reaped it, before this look.
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


class Victims(Daemons):
    """Two sets of daemons. The prefill node `mortal_sender` dies, serving `receiver`. The decode
    node `mortal_receiver` dies; its prefill node `sender` also serves `other`."""

    def __init__(self) -> None:
        prefill = [*victim_flags(), "--layers-per-window", "1"]
        self.mortal_sender = Victim("prefill", *prefill)
        self.mortal_sender.wait_ready()
        self.receiver = Node("decode", *decode_flags(self.mortal_sender)).wait_ready()
        self.sender = Node("prefill", *prefill).wait_ready()
        self.other = Node("decode", *decode_flags(self.sender)).wait_ready()
        self.mortal_receiver = Victim("decode", *decode_flags(self.sender))
        self.mortal_receiver.wait_ready()
        for decode in (self.receiver, self.other, self.mortal_receiver):
            self.met(decode)

    @property
    def nodes(self) -> tuple[Node, ...]:
        receivers = (self.mortal_receiver, self.other)
        return (*receivers, self.sender, self.receiver, self.mortal_sender)

    def met(self, decode: Node) -> None:
        """Wait until the decode node is connected to its prefill node."""
        connected = pb.PREFILL_NODE_STATE_CONNECTED
        until(lambda: state(decode) == connected, f"{decode.address} is alone")


def state(decode: Node) -> int:
    """Return the state of the decode node's only prefill node, as known by the decode node."""
    (node,) = decode.stats().prefill_nodes
    return int(node.state)
