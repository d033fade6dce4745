"""Which process a node is and how its arenas are reached: what both sides exchange at connect."""

import hashlib
import secrets
from dataclasses import dataclass, field

from tasuki.pycache.arena_key import ONLY_ARENA, ArenaKey

from .process_identity import ProcessIdentity

EPOCH_BYTES = 16
_CHECKSUM_BYTES = 16


@dataclass(frozen=True)
class ArenaAddress:
    """transport_metadata opens the arena's memory, and is kept out of texts: of `slabs` slabs, or
    as many for each of several ranks, one behind another (transfer/ranks/spans.py)."""

    transport_metadata: bytes = field(repr=False)
    slabs: int
    key: ArenaKey = ONLY_ARENA
    ranks: int = 1


@dataclass(frozen=True)
class NodeIdentity:
    """epoch: identity of this process start, compared for equality only. transport: its kind's
    name. arenas: those that peers may write into, one a link; the wire carries one."""

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
        """This process, with one arena of `slabs` slabs. kind, metadata: of its transport."""
        return NodeIdentity(
            name=name,
            epoch=secrets.token_bytes(EPOCH_BYTES),
            process=ProcessIdentity.own(),
            transport=kind,
            arenas=(ArenaAddress(metadata, slabs, arena, ranks),),
        )


def metadata_checksum(metadata: bytes) -> bytes:
    """Travels beside transport metadata. It finds accidents before anything parses them, not
    forgers."""
    return hashlib.blake2b(metadata, digest_size=_CHECKSUM_BYTES).digest()
