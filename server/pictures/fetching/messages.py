"""Messages between a client of fetching and its worker process. Immutable values.

A FetchJob is one datagram of MessagePack, with one descriptor: a stream socket for its reply. The
reply is one FetchReply behind its length, then the content.
"""

import struct
from enum import StrEnum

import msgspec

MOST_MESSAGE_BYTES = 16 << 10
MOST_REASON = 400
LENGTH = struct.Struct("<I")
"""Length of a FetchReply in bytes."""


class FetchJob(msgspec.Struct, frozen=True):
    """An address to fetch. hosts: listed ones. most_bytes: of the content. seconds: for all of
    it."""

    url: str
    hosts: tuple[str, ...]
    most_bytes: int
    seconds: float


class FetchOutcome(StrEnum):
    """Outcome of a job. FETCHED: the content follows. TOO_LARGE: it has too many bytes. REFUSED:
    the address, or its server's reply."""

    FETCHED = "fetched"
    TOO_LARGE = "too_large"
    REFUSED = "refused"


class FetchReply(msgspec.Struct, frozen=True):
    """Result of one job. reason: empty if it was fetched. size: bytes of the content behind it."""

    outcome: FetchOutcome
    reason: str = ""
    size: int = 0
