"""Messages between the trial server (the process for trying grammars) and its clients, and their
frames.

Immutable values; pure functions. A frame is the length of its body in 4 bytes, little-endian, then
the body: one message as MessagePack. A client sends Ask and Leave, the server sends Reply. Every
Ask gets one Reply, unless its client sent Leave for it or has disconnected.
"""

from enum import StrEnum

import msgspec

from tasuki.model.grammar.grammar import MAX_SOURCE_BYTES, GrammarKind

_LENGTH_BYTES = 4
MAX_FRAME_BYTES = MAX_SOURCE_BYTES + (4 << 10)
"""Size in bytes of the largest frame: one grammar source and the name of one caller."""


class Outcome(StrEnum):
    """Outcome of a grammar's trial. PASSED: the grammar can be compiled. REFUSED: it cannot be
    compiled, or only at too high a cost. BUSY: the trial ended without a verdict, and may be
    repeated. UNAVAILABLE: no grammar can be tried here."""

    PASSED = "passed"
    REFUSED = "refused"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


class Verdict(msgspec.Struct, frozen=True):
    """Result of one grammar's trial. reason: text for the caller, empty if the grammar passed.
    held_bytes: growth of the trial process's memory in bytes, an upper bound for the compiled
    grammar."""

    outcome: Outcome
    reason: str = ""
    held_bytes: int = 0

    @property
    def is_final(self) -> bool:
        """Return true if every trial of the same source would give the same verdict."""
        return self.outcome in (Outcome.PASSED, Outcome.REFUSED)


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Message of a client: try this grammar source. number: the client's own number of the message,
    used once. caller: name of the user charged for the trial."""

    number: int
    caller: str
    kind: GrammarKind
    source: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Message of a client: it no longer waits for the verdict of its Ask `number`."""

    number: int


class Reply(msgspec.Struct, frozen=True):
    """Message of the server: the verdict of the client's Ask `number`."""

    number: int
    verdict: Verdict


class BrokenFrame(ValueError):
    """Error: received bytes are no frame of this protocol."""


def frame_of(message: msgspec.Struct) -> bytes:
    """Return the message as one frame. Raises UnicodeEncodeError for invalid Unicode."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameBuffer:
    """Buffer for joining received bytes into frames. One thread uses it."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Add received bytes. Return the bodies of the frames completed by them, in order. Raises
        BrokenFrame if a frame is too long."""
        self._held += data
        bodies: list[bytes] = []
        at = 0
        while len(self._held) - at >= _LENGTH_BYTES:
            length = int.from_bytes(self._held[at : at + _LENGTH_BYTES], "little")
            if length > MAX_FRAME_BYTES:
                raise BrokenFrame(f"a frame of {length} bytes: at most {MAX_FRAME_BYTES} are read")
            end = at + _LENGTH_BYTES + length
            if len(self._held) < end:
                break
            bodies.append(bytes(self._held[at + _LENGTH_BYTES : end]))
            at = end
        del self._held[:at]
        return bodies
