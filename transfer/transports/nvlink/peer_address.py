"""Addresses for writing between processes of one host: of GPU memory, and of notifications.

Pure. Values come from peers, so their bounds are checked here.
"""

import json
import secrets
from dataclasses import dataclass

from tasuki.pycache._cpp_cache import Mailbox
from tasuki.transfer.errors import TransportError
from tasuki.transfer.node_identity import ProcessIdentity
from tasuki.transfer.peer_values import integer, is_name

from .cuda_ipc import HANDLE_BYTES, Export

SECRET_BYTES = 16


@dataclass(frozen=True)
class MailboxAddress:
    """Address for a process's notifications on one host: datagrams on a Unix socket, with compiled
    ends (cpp_cache/dataplane/mailbox.h).

    Its thread rule and invariants are in that header. name: the socket's name. secret: bytes
    required before each notification.
    """

    name: str
    secret: bytes

    @staticmethod
    def new() -> "MailboxAddress":
        name = f"tasuki-{secrets.token_hex(SECRET_BYTES)}"
        return MailboxAddress(name, secrets.token_bytes(SECRET_BYTES))

    def open(self) -> Mailbox:
        """Open the mailbox for reading notifications."""
        return Mailbox(self.name, self.secret)


_LONGEST = 16384
_MOST_RANKS = 64
_HIGHEST_PID = 1 << 22


@dataclass(frozen=True)
class PeerArena:
    """Exported arena of one rank. gpu: its UUID, because processes count GPUs differently."""

    gpu: str
    memory: Export


@dataclass(frozen=True)
class PeerAddress:
    """Address of a node's GPU memory, for peers to write to from their own process.

    Its holder may write anywhere in the allocation, so it is sent over the control connection only.
    Pure. arenas: memory to write to, one for each of the node's ranks. size: bytes of each arena.
    stride: bytes between the beginnings of two arenas in the region. gate: exported word of the
    node's `PeerGate` (cuda_ipc.py). mailbox: address for notifications.
    """

    process: ProcessIdentity
    arenas: tuple[PeerArena, ...]
    size: int
    stride: int
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
                "arenas": [
                    [arena.gpu, arena.memory.handle.hex(), arena.memory.offset]
                    for arena in self.arenas
                ],
                "size": self.size,
                "stride": self.stride,
                "gate": self.gate.handle.hex(),
                "gate_offset": self.gate.offset,
                "mailbox": self.mailbox.name,
                "secret": self.mailbox.secret.hex(),
            }
        ).encode()

    @staticmethod
    def unpack(metadata: bytes) -> "PeerAddress":
        """Return the address. Raises TransportError on data impossible for this version."""
        try:
            # Limited before it is parsed, because deeply nested JSON overflows the interpreter's
            # stack.
            if len(metadata) > _LONGEST:
                raise ValueError(f"{len(metadata)} bytes are too many")
            read = json.loads(metadata)
            return PeerAddress(
                process=ProcessIdentity(
                    _text(read["boot_id"]),
                    integer(read["pid_namespace"]),
                    integer(read["pid"], _HIGHEST_PID),
                    integer(read["start_ticks"]),
                ),
                arenas=_arenas(read["arenas"]),
                size=integer(read["size"]),
                stride=_stride(read["stride"], read["size"]),
                gate=Export(_bytes(read["gate"], HANDLE_BYTES), integer(read["gate_offset"])),
                mailbox=MailboxAddress(
                    _text(read["mailbox"]), _bytes(read["secret"], SECRET_BYTES)
                ),
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransportError(f"the peer's address cannot be read: {error!r}") from error


def _arenas(value: object) -> tuple[PeerArena, ...]:
    if not isinstance(value, list) or not 0 < len(value) <= _MOST_RANKS:
        raise ValueError(f"a node has 1 to {_MOST_RANKS} arenas")
    return tuple(
        PeerArena(_text(gpu), Export(_bytes(handle, HANDLE_BYTES), integer(offset)))
        for gpu, handle, offset in value
    )


def _stride(value: object, size: object) -> int:
    stride = integer(value)
    if stride < integer(size) or not stride:
        raise ValueError("arenas of a region would lie in one another")
    return stride


def _text(value: object) -> str:
    if not isinstance(value, str) or not is_name(value):
        raise ValueError("a name is none")
    return value


def _bytes(value: object, count: int) -> bytes:
    if not isinstance(value, str) or len(value) != 2 * count:
        raise ValueError(f"{count} bytes in hexadecimal are expected")
    return bytes.fromhex(value)
