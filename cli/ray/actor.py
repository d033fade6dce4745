"""One node under Ray: an actor that keeps one daemon alive and says where it is.

Owns a child process and a file of prefill nodes that the child watches. Does not know its fellows.
Thread rule: Ray calls one method at a time. Invariants: a child never outlives its actor, since its
stdin ends with it; whoever asks for the address of a child that died gets its successor's.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

from tasuki.cli.launcher import Daemon


class RayNode:
    """Made an actor by fleet.py. role: prefill or decode."""

    def __init__(self, role: str, name: str, flags: Sequence[str], host: str) -> None:
        """flags: the daemon's, without --bind and --name; host: to bind, empty for the address that
        Ray knows this machine by."""
        self._role = role
        self._folder = tempfile.TemporaryDirectory(prefix="tasuki-")
        self._members = Path(self._folder.name) / "prefill-nodes"
        self._members.write_text("", encoding="utf-8")
        self._flags = [*flags, "--name", name]
        if role == "decode":
            self._flags += ["--prefill-file", str(self._members)]
        self._host = host or _own_address()
        self._daemon: Daemon | None = None
        self._address = ""

    def address(self) -> str:
        """HOST:PORT of a daemon that takes calls; starts one where there is none. Raises
        LaunchError."""
        if self._daemon is not None and self._daemon.exit_status is not None:
            self._daemon.stop()
            self._daemon = None
        if self._daemon is None:
            self._daemon = Daemon(self._role, self._flags, bind=f"{self._host}:0")
            self._address = self._daemon.wait_ready()
        return self._address

    def follow(self, members: Sequence[str]) -> None:
        """(decode) The prefill nodes from now on, HOST:PORT."""
        fresh = self._members.with_suffix(".new")
        fresh.write_text("".join(f"{member}\n" for member in members), encoding="utf-8")
        fresh.replace(self._members)

    def pid(self) -> int:
        """Of the daemon. REQUIRES: address() was asked."""
        assert self._daemon is not None
        return self._daemon.pid

    def machine(self) -> str:
        """As Ray names it."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def drain(self, timeout: float) -> int:
        """SIGTERM, and its exit status once what was in flight has ended."""
        if self._daemon is None:
            return 0
        daemon, self._daemon = self._daemon, None
        return daemon.stop(timeout)


def _own_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
