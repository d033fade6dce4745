"""Who a node is and how its arena is reached: what both sides tell each other at connect."""

import hashlib
import secrets
from dataclasses import dataclass, field

from tasuki.transfer.transports.base import Transport

from .process_identity import ProcessIdentity

EPOCH_BYTES = 16
_CHECKSUM_BYTES = 16


@dataclass(frozen=True)
class NodeIdentity:
    """epoch: identity of this process start, compared for equality only. transport: its kind's
    name. transport_metadata opens this node's memory, and is kept out of texts."""

    name: str
    epoch: bytes
    process: ProcessIdentity
    transport: str
    transport_metadata: bytes = field(repr=False)
    slabs: int

    @staticmethod
    def new(name: str, kind: str, transport: Transport, slabs: int) -> "NodeIdentity":
        """This process. REQUIRES: transport has registered the arena of `slabs` slabs."""
        return NodeIdentity(
            name=name,
            epoch=secrets.token_bytes(EPOCH_BYTES),
            process=ProcessIdentity.own(),
            transport=kind,
            transport_metadata=transport.metadata(),
            slabs=slabs,
        )


def metadata_checksum(metadata: bytes) -> bytes:
    """Travels beside transport metadata. It finds accidents before anything parses them, not
    forgers."""
    return hashlib.blake2b(metadata, digest_size=_CHECKSUM_BYTES).digest()
