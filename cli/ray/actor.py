"""One node under Ray: an actor for keeping one daemon alive and returning its address.

Owns a child process and a file of prefill nodes, watched by the child while it decodes. Thread
rule: Ray calls one method at a time. Invariants: a child never outlives its actor, because its
stdin closes with the actor. A dead child's successor has the same role, and its address replaces
the old one.
"""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tasuki.cli.launcher import STOP_SECONDS, Daemon
from tasuki.cli.planner.cluster import Standing
from tasuki.cli.planner.config import NodeAccess
from tasuki.cli.role import change_role
from tasuki.client.channel import bearing, open_channel
from tasuki.server.bind import join_address
from tasuki.utils.tls import ClientTls

_SHOWN = "CUDA_VISIBLE_DEVICES"


class RayNode:
    """One node under Ray; fleet.py makes it a Ray actor. role: prefill or decode."""

    def __init__(
        self,
        role: str,
        name: str,
        flags: Sequence[str],
        host: str,
        access: NodeAccess | None = None,
        gpus: float = 0.0,
    ) -> None:
        """Set up a node. flags: flags of its daemon, without --bind and --name. host: address to
        bind; empty for Ray's address of this machine. access: the planner's access to nodes placed
        by it. gpus: number of GPUs given by Ray."""
        if gpus:
            shown = os.environ.get(_SHOWN, "")
            os.environ[_SHOWN] = own_first(shown, _machines_gpus())
        self._role = role
        self._folder = tempfile.TemporaryDirectory(prefix="tasuki-")
        folder = Path(self._folder.name)
        self._members = folder / "prefill-nodes"
        self._members.write_text("", encoding="utf-8")
        self._host = host or _own_address()
        self._access = access
        self._flags = [*flags, "--name", name]
        if access is not None:
            self._flags += access.flags(self._host, flags)
        # The members to follow as a decode node, even if it begins as a prefill node.
        self._other = folder / "other-role.toml"
        self._other.write_text(f'prefill_file = "{self._members}"\n', encoding="utf-8")
        self._daemon: Daemon | None = None
        self._address = ""
        """HOST:PORT of the daemon's API server; empty before its first start."""

    def address(self) -> str:
        """Return HOST:PORT of a ready daemon; starts a daemon if there is none or it has ended. For
        a prefill daemon it is the address for decode nodes. Raises LaunchError."""
        if self._daemon is not None and self._daemon.exit_status is not None:
            self._daemon.stop()
            self._daemon = None
        if self._daemon is None:
            flags = [*self._flags, *self._role_flags()]
            self._daemon = Daemon(self._role, flags, bind=f"{self._host}:0")
            self._address = self._daemon.wait_ready()
        return self._daemon.handover_address or self._address

    def stand(self) -> Standing:
        """Return the Standing (role and addresses) of a ready daemon, started like in address().
        Raises LaunchError."""
        address = self.address()
        assert self._daemon is not None
        return Standing(self._role, address, self._daemon.http_address or "")

    def follow(self, members: Sequence[str]) -> None:
        """Set the prefill nodes used by a decode node from now on. members: HOST:PORT of each."""
        fresh = self._members.with_suffix(".new")
        fresh.write_text("".join(f"{member}\n" for member in members), encoding="utf-8")
        fresh.replace(self._members)

    def change_role(self, role: str) -> None:
        """Change the node's role after requests in flight have finished. REQUIRES: address() was
        called; the node has an access. Raises ClientError, RoleNotTaken."""
        access = self._access
        assert access is not None
        tls = ClientTls(access.ca) if access.ca else None
        with open_channel(self._address, tls) as plain:
            channel = bearing(plain, access.key) if access.key else plain
            change_role(channel, role, {}, access.drain_seconds + STOP_SECONDS)
        self._role = role

    def pid(self) -> int:
        """Return the process id of the node's daemon. REQUIRES: address() was called."""
        assert self._daemon is not None
        return self._daemon.pid

    def machine(self) -> str:
        """Return Ray's id of the machine under this node."""
        import ray

        return str(ray.get_runtime_context().get_node_id())

    def drain(self, timeout: float | None = None) -> int:
        """Send SIGTERM to the daemon, and return its exit status after requests in flight have
        finished; 0 without a daemon. timeout: seconds until it is killed; None: the access's drain
        time plus time to stop. Call no other method afterwards."""
        if timeout is None:
            timeout = STOP_SECONDS + (self._access.drain_seconds if self._access else 0.0)
        daemon, self._daemon = self._daemon, None
        status = 0 if daemon is None else daemon.stop(timeout)
        self._folder.cleanup()
        return status

    def _role_flags(self) -> list[str]:
        if self._role == "decode":
            return ["--prefill-file", str(self._members)]
        if self._access is not None:
            return ["--other-role-config", str(self._other)]
        if any(flag.startswith("--handover-bind") for flag in self._flags):
            return []
        # Only with an engine in a separate process: an engine of several ranks, or on a GPU.
        return ["--handover-bind", join_address(self._host, 0)]


def own_first(own: str, gpus: int) -> str:
    """Return a node's GPU list for CUDA: the GPUs given by Ray, then the machine's others. The node
    computes on the first GPUs in the list. It needs the others because transfers write to their
    memory. own: Ray's comma-separated list; names instead of numbers are returned unchanged. gpus:
    number of the machine's GPUs."""
    numbers = own.split(",")
    if not all(number.isdecimal() for number in numbers):
        return own
    return ",".join([*numbers, *(str(i) for i in range(gpus) if str(i) not in numbers)])


def _machines_gpus() -> int:
    import ray

    here = ray.get_runtime_context().get_node_id()
    (machine,) = [node for node in ray.nodes() if node["NodeID"] == here]
    return int(machine["Resources"].get("GPU", 0))


def _own_address() -> str:
    import ray

    return str(ray.util.get_node_ip_address())
