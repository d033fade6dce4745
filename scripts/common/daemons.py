"""The daemons of a script.

Owns their processes. Invariant: each node of a pair keeps its address over its lives, so clients
and the other node find it again.
"""

import subprocess
import sys
from collections.abc import Sequence
from typing import Self

from tasuki.cli.launcher import Daemon
from tests.harness.daemons import Node, has_met, kept_address
from tests.harness.waiting import HANG_SECONDS, until


class Daemons:
    """Daemons for a `with` block: at the end every node stops. If nothing was raised it must stop
    well."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """Return the nodes in the order of stopping them."""
        raise NotImplementedError

    def assert_at_rest(self, seconds: float = HANG_SECONDS) -> None:
        """Check every node: it holds nothing."""
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
    """A prefill and a decode node."""

    def __init__(
        self, prefill: Sequence[str], decode: Sequence[str], meet_seconds: float = HANG_SECONDS
    ) -> None:
        """Start the pair, and return once the two are connected. prefill, decode: their flags."""
        self._meet_seconds = meet_seconds
        self.prefill = Node("prefill", *prefill, bind=kept_address()).wait_ready()
        target = ("--prefill", self._link(self.prefill.address))
        self.decode = Node("decode", *decode, *target, bind=kept_address()).wait_ready()
        self.meet()

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.decode, self.prefill

    def _link(self, address: str) -> str:
        """Return the address the decode node dials for the prefill node at `address`."""
        return address

    def meet(self) -> None:
        """Wait until the two nodes are connected."""
        story = "decode and prefill do not find each other"
        until(lambda: has_met(self.decode), story, self._meet_seconds)


class ModuleDaemon(Daemon):
    """A daemon of another program than `tasuki`."""

    def __init__(
        self,
        program: Sequence[str],
        command: str,
        flags: Sequence[str],
        bind: str = "127.0.0.1:0",
        *,
        between: Sequence[str] = (),
    ) -> None:
        """Start a module. program: a module and its arguments before the command. between: its
        arguments between the command and its flags."""
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
