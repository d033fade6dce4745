"""Daemons started by a script.

Owns their processes. Invariant: a node keeps its address over restarts, so clients and other nodes
find it again.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Self

from tasuki.cli.launcher import Daemon
from tests.harness.daemons import Node, has_met, kept_address
from tests.harness.waiting import HANG_SECONDS, until


class Daemons:
    """Daemons running during a `with` block. At its end every node stops; if the block raised
    nothing, each must stop with exit status 0."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in the order to stop them."""
        raise NotImplementedError

    def assert_at_rest(self, seconds: float = HANG_SECONDS) -> None:
        """Check every node: within `seconds` it holds nothing of any request."""
        for node in self.nodes:
            node.assert_at_rest(seconds)

    def close(self) -> list[int]:
        """Stop all nodes and return their exit statuses."""
        return [node.stop() for node in self.nodes]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        statuses = self.close()
        assert kind is not None or not any(statuses), statuses


class Pair(Daemons):
    """A prefill node and a decode node connected to it."""

    def __init__(
        self, prefill: Sequence[str], decode: Sequence[str], meet_seconds: float = HANG_SECONDS
    ) -> None:
        """Start both nodes, and return once they are connected. prefill, decode: flags of the
        nodes. meet_seconds: time limit for the connection."""
        self._meet_seconds = meet_seconds
        self.prefill = Node("prefill", *prefill, bind=kept_address()).wait_ready()
        target = ("--prefill", self._link(self.prefill.address))
        self.decode = Node("decode", *decode, *target, bind=kept_address()).wait_ready()
        self.meet()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.decode, self.prefill

    def _link(self, address: str) -> str:
        """Return the address the decode node dials instead of the prefill node's own `address`."""
        return address

    def meet(self) -> None:
        """Wait until the two nodes are connected."""
        story = "decode and prefill do not find each other"
        until(lambda: has_met(self.decode), story, self._meet_seconds)


class ModuleDaemon(Daemon):
    """A daemon run by a Python module other than `tasuki`."""

    def __init__(
        self,
        program: Sequence[str],
        command: str,
        flags: Sequence[str],
        bind: str = "127.0.0.1:0",
        *,
        between: Sequence[str] = (),
    ) -> None:
        """Start the module. program: the module and its arguments before the command. command: for
        example serve. between: arguments between the command and its flags. flags: flags of the
        command. bind: address of the daemon."""
        self._program = program
        self._between = between
        super().__init__(command, flags, bind)

    def _spawn(self, arguments: Sequence[str]) -> "subprocess.Popen[str]":
        command, *flags = arguments
        program = [sys.executable, "-m", *self._program, command, *self._between]
        return subprocess.Popen(
            [*program, *flags, "--exit-with-parent"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
