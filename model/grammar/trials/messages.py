"""Messages between a client of trials and the trial server, and their frames.

Immutable values; pure functions. A frame is the length of its body in 4 bytes, little-endian, then
the body: one message as MessagePack. A client sends Ask and Leave, the server sends Reply. Every
Ask gets one Reply, unless its client sent Leave for it or is gone.
"""

from enum import StrEnum

import msgspec

from tasuki.model.grammar.grammar import MAX_SOURCE_BYTES, GrammarKind

_LENGTH_BYTES = 4
MAX_FRAME_BYTES = MAX_SOURCE_BYTES + (4 << 10)
"""Bytes of the largest frame: one source and the name of one caller."""


class Outcome(StrEnum):
    """Outcome of a trial. PASSED: the grammar can be compiled. REFUSED: it cannot, or only at too
    high a cost. BUSY: no verdict was reached in time. UNAVAILABLE: grammars cannot be tried
    here."""

    PASSED = "passed"
    REFUSED = "refused"
    BUSY = "busy"
    UNAVAILABLE = "unavailable"


class Verdict(msgspec.Struct, frozen=True):
    """Result of one trial. reason: text for the caller, empty if the grammar passed. held_bytes:
    growth of the trial process's memory, an upper bound for the compiled grammar."""

    outcome: Outcome
    reason: str = ""
    held_bytes: int = 0

    @property
    def is_final(self) -> bool:
        """Return whether the same source gets the same verdict at every trial."""
        return self.outcome in (Outcome.PASSED, Outcome.REFUSED)


class Ask(msgspec.Struct, frozen=True, tag=True):
    """Request to try this source. number: the client's own, used once. caller: the trial counts in
    its share."""

    number: int
    caller: str
    kind: GrammarKind
    source: str


class Leave(msgspec.Struct, frozen=True, tag=True):
    """Message: the client no longer waits for the verdict of Ask `number`."""

    number: int


class Reply(msgspec.Struct, frozen=True):
    """The verdict of Ask `number`."""

    number: int
    verdict: Verdict


class BrokenFrame(ValueError):
    """Error for bytes without a frame of this protocol."""


def frame_of(message: msgspec.Struct) -> bytes:
    """Return the message as one frame. Raises UnicodeEncodeError if a text is not valid Unicode."""
    body = msgspec.msgpack.encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "little") + body


class FrameBuffer:
    """Received bytes of incomplete frames. One thread."""

    def __init__(self) -> None:
        self._held = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Return the newly complete bodies, in order. Raises BrokenFrame if one is too long."""
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
