"""Prefixes that a node can resume prompts from, by salted names: as values and as protobuf.

Names reveal nothing of their tokens to who does not know the salt (cpp_cache/events/prefix_hash.h).
Pure. What is read from a peer is bounded, and what no node of this version sends is refused.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import PeerInvalid

MOST_PREFIXES = 4096
"""Of one batch, those that go and those that come together."""
NAME_BYTES = 16
_MOST_TOKENS = 2**31 - 1


class UsablePrefix(NamedTuple):
    """parent: the name of the whole pages before the last page or part of one. tokens: its
    length."""

    name: bytes
    parent: bytes
    tokens: int


def in_batches(prefixes: Sequence[UsablePrefix]) -> Iterator[Sequence[UsablePrefix]]:
    for first in range(0, len(prefixes), MOST_PREFIXES):
        yield prefixes[first : first + MOST_PREFIXES]


def prefixes_to_wire(prefixes: Sequence[UsablePrefix]) -> pb.Prefixes:
    return pb.Prefixes(
        names=b"".join(prefix.name for prefix in prefixes),
        parents=b"".join(prefix.parent for prefix in prefixes),
        tokens=[prefix.tokens for prefix in prefixes],
    )


def prefixes_from_wire(batch: pb.UsableBatch) -> tuple[list[UsablePrefix], list[UsablePrefix]]:
    """Those that go, and those that come. Raises PeerInvalid naming the field."""
    count = len(batch.removed.tokens) + len(batch.stored.tokens)
    if count > MOST_PREFIXES:
        raise PeerInvalid(f"usable: a batch has {count} prefixes, at most {MOST_PREFIXES}")
    return _read(batch.removed, "removed"), _read(batch.stored, "stored")


def _read(prefixes: pb.Prefixes, field: str) -> list[UsablePrefix]:
    tokens, names, parents = prefixes.tokens, prefixes.names, prefixes.parents
    for name, column in (("names", names), ("parents", parents)):
        if len(column) != NAME_BYTES * len(tokens):
            raise PeerInvalid(
                f"usable.{field}.{name} has {len(column)} bytes, {NAME_BYTES} are of each of "
                f"{len(tokens)} prefixes"
            )
    if any(not 0 < length <= _MOST_TOKENS for length in tokens):
        raise PeerInvalid(f"usable.{field}.tokens has one that is not in [1, {_MOST_TOKENS}]")
    return [
        UsablePrefix(names[at : at + NAME_BYTES], parents[at : at + NAME_BYTES], length)
        for at, length in zip(range(0, len(names), NAME_BYTES), tokens, strict=True)
    ]
