"""What a node tells its peers so that they can write into its GPU's memory from their own process.

Whoever has it may write anywhere in the allocation: it travels over the control connection only.
Pure.
"""

import json
from dataclasses import dataclass

from ..errors import TransportError
from ..fence import ProcessIdentity
from .cuda_ipc import Export
from .mailbox import MailboxAddress


@dataclass(frozen=True)
class PeerAddress:
    """gpu: its UUID, since processes count GPUs differently. arena, size: the memory to write to;
    gate: see peer_gate."""

    process: ProcessIdentity
    gpu: str
    arena: Export
    size: int
    gate: Export
    mailbox: MailboxAddress

    def pack(self) -> bytes:
        process = self.process
        return json.dumps(
            {
                "boot_id": process.boot_id,
                "pid_namespace": process.pid_namespace,
                "pid": process.pid,
                "start_ticks": process.start_ticks,
                "gpu": self.gpu,
                "arena": self.arena.handle.hex(),
                "arena_offset": self.arena.offset,
                "size": self.size,
                "gate": self.gate.handle.hex(),
                "gate_offset": self.gate.offset,
                "mailbox": self.mailbox.name,
                "secret": self.mailbox.secret.hex(),
            }
        ).encode()

    @staticmethod
    def unpack(metadata: bytes) -> "PeerAddress":
        """Raises TransportError on what no node of this version writes."""
        try:
            read = json.loads(metadata)
            return PeerAddress(
                process=ProcessIdentity(
                    str(read["boot_id"]),
                    int(read["pid_namespace"]),
                    int(read["pid"]),
                    int(read["start_ticks"]),
                ),
                gpu=str(read["gpu"]),
                arena=Export(bytes.fromhex(read["arena"]), int(read["arena_offset"])),
                size=int(read["size"]),
                gate=Export(bytes.fromhex(read["gate"]), int(read["gate_offset"])),
                mailbox=MailboxAddress(str(read["mailbox"]), bytes.fromhex(read["secret"])),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise TransportError(f"the peer's address cannot be read: {error!r}") from error
