"""Identity of a peer's node and process, and the addresses of its arenas.

`ProcessIdentity`: the peer's process, so its death can be proved on the same host. `NodeIdentity`:
the node's process and arenas, exchanged by both sides at connect.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated

from tasuki.pycache.layout import ONLY_ARENA, ArenaKey
from tasuki.transfer.peer_values import Name, count

_HIGHEST_PID = 1 << 22


@dataclass(frozen=True)
class ProcessIdentity:
    """Identity of a process on one boot of a host. start_ticks: start time of the process in clock
    ticks; it distinguishes a reused pid from the pid's first owner."""

    boot_id: Name
    pid_namespace: int
    pid: Annotated[int, partial(count, most=_HIGHEST_PID)]
    start_ticks: int

    @staticmethod
    def own() -> "ProcessIdentity":
        boot_id, namespace = _host()
        return ProcessIdentity(boot_id, namespace, os.getpid(), _start_ticks(os.getpid()))

    def here(self) -> bool:
        """Return True if the pid means the same process here: same boot and pid namespace."""
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
    # The command's name is in parentheses, and may itself contain spaces and parentheses.
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[19])


EPOCH_BYTES = 16
_CHECKSUM_BYTES = 16


@dataclass(frozen=True)
class ArenaAddress:
    """Address of an arena for peers.

    transport_metadata: bytes to open the arena's memory with, kept out of logs. slabs: size of each
    rank's arena in slabs (fixed-size parts). ranks: number of ranks; their arenas are one behind
    another (transfer/ranks/region.py).
    """

    transport_metadata: bytes = field(repr=False)
    slabs: int
    key: ArenaKey = ONLY_ARENA
    ranks: int = 1


@dataclass(frozen=True)
class NodeIdentity:
    """Identity of a node for its peers.

    epoch: random bytes of this process start, compared for equality only. transport: name of the
    transport's kind. arenas: arenas open to writes of peers, one for each link; the wire carries
    one.
    """

    name: str
    epoch: bytes
    process: ProcessIdentity
    transport: str
    arenas: tuple[ArenaAddress, ...]

    @staticmethod
    def new(
        name: str,
        kind: str,
        metadata: bytes,
        slabs: int,
        arena: ArenaKey = ONLY_ARENA,
        ranks: int = 1,
    ) -> "NodeIdentity":
        """Return the identity of this process, with one arena of `slabs` slabs. kind, metadata:
        kind and metadata of its transport."""
        return NodeIdentity(
            name=name,
            epoch=secrets.token_bytes(EPOCH_BYTES),
            process=ProcessIdentity.own(),
            transport=kind,
            arenas=(ArenaAddress(metadata, slabs, arena, ranks),),
        )


def metadata_checksum(metadata: bytes) -> bytes:
    """Return the checksum sent together with transport metadata. It finds accidental damage before
    the metadata are parsed, not forgery."""
    return hashlib.blake2b(metadata, digest_size=_CHECKSUM_BYTES).digest()
