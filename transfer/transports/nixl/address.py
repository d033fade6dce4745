"""What a node sends its peers so that NIXL can write into its arena: a line of JSON, then NIXL's
own blob.

Pure. Invariant: what was unpacked is bounded; the blob is opaque, and harmless to nobody before
metadata_probe has tried it.
"""

import json
from dataclasses import dataclass

from tasuki.transfer.errors import TransportError

_LONGEST_LINE = 4096
_LARGEST_BLOB = 1 << 18
"""A worker's address has some hundred bytes a network device."""
_MOST_PORTS = 64
_HIGHEST_PORT = (1 << 16) - 1
_MOST_DEVICES = 1 << 10
_ADDRESS_SPACE = 1 << 64
_LARGEST_ARENA = 1 << 46
_MEMORIES = ("DRAM", "VRAM")


@dataclass(frozen=True)
class NixlAddress:
    """The arena is bytes [address, address + size) of the peer's `memory`, of its GPU `device`.
    ports: on which its UCX listens."""

    address: int
    size: int
    device: int
    memory: str
    ports: tuple[int, ...]
    blob: bytes

    def pack(self) -> bytes:
        description = {
            "address": self.address,
            "size": self.size,
            "device": self.device,
            "memory": self.memory,
            "ports": list(self.ports),
        }
        return json.dumps(description).encode() + b"\n" + self.blob

    @staticmethod
    def unpack(metadata: bytes) -> "NixlAddress":
        """Raises TransportError on what no node of this version writes."""
        # Bounded before it is parsed: nested deeply enough, JSON ends the interpreter's stack.
        line, _, blob = metadata[: _LONGEST_LINE + _LARGEST_BLOB + 1].partition(b"\n")
        try:
            if len(line) > _LONGEST_LINE or len(blob) > _LARGEST_BLOB:
                raise ValueError(f"{len(metadata)} bytes are too many")
            read = json.loads(line)
            made = NixlAddress(
                address=_integer(read["address"], _ADDRESS_SPACE - 1),
                size=_integer(read["size"], _LARGEST_ARENA),
                device=_integer(read["device"], _MOST_DEVICES),
                memory=read["memory"],
                ports=tuple(_integer(port, _HIGHEST_PORT) for port in read["ports"][:_MOST_PORTS]),
                blob=blob,
            )
            if made.memory not in _MEMORIES:
                raise ValueError(f"memory is none of {', '.join(_MEMORIES)}")
            if made.address + made.size > _ADDRESS_SPACE:
                raise ValueError("the arena ends behind the last address")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransportError(f"the peer's NIXL metadata cannot be read: {error!r}") from error
        return made


def _integer(value: object, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError(f"a number is not in [0, {most}]")
    return value
