"""Which process a peer is, so that its death can be proved on the same host."""

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessIdentity:
    """Which process of which boot of which host; start_ticks sets a reused pid apart from its first
    owner."""

    boot_id: str
    pid_namespace: int
    pid: int
    start_ticks: int

    @staticmethod
    def own() -> "ProcessIdentity":
        boot_id, namespace = _host()
        return ProcessIdentity(boot_id, namespace, os.getpid(), _start_ticks(os.getpid()))

    def here(self) -> bool:
        """Whether its pid means the same process to us."""
        return (self.boot_id, self.pid_namespace) == _host()


def _host() -> tuple[str, int]:
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return boot_id, os.stat("/proc/self/ns/pid").st_ino


def _shares_network(pid: int) -> bool:
    try:
        theirs = os.stat(f"/proc/{pid}/ns/net").st_ino
    except OSError:
        return False
    return theirs == os.stat("/proc/self/ns/net").st_ino


def _start_ticks(pid: int) -> int:
    # The command's name is in parentheses and may hold spaces and parentheses itself.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19])
