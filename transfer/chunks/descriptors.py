"""Places of a layer chunk's bytes in the sender's and the receiver's arena, as offsets and lengths.

Pure functions and values. A unit is a block (one page in one layer) or the state of one layer.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tasuki.pycache.layout import CacheLayout, Span
from tasuki.pycache.parts import LayerCache
from tasuki.transfer.errors import OutOfBounds

from .chunk import ChunkHeader


class UnitSizes(Protocol):
    """Lengths of the sent units: bytes on the wire of a layer's block, and of its state.

    Most parts of a sender need nothing else of a layout. A CacheLayout is one, for a wire without
    encoding. layers: the caches of the layers.
    """

    @property
    def layers(self) -> tuple[LayerCache, ...]: ...

    def block_length(self, layer: int) -> int: ...

    def block_rows(self, layer: int) -> tuple[Span, ...]: ...

    def state_length(self, layer: int) -> int: ...


Segments = NDArray[np.int64]


def chunk_bytes(sizes: UnitSizes, header: ChunkHeader) -> int:
    """Return the total bytes of the chunk's segments."""
    return sum(
        layer_bytes(sizes, layer, header.pages, header.carries_state)
        for layer in range(header.first_layer, header.end_layer)
    )


def layer_bytes(sizes: UnitSizes, layer: int, pages: int, carries_state: bool) -> int:
    """Return the bytes to send for one layer: `pages` pages, and with carries_state the state."""
    state = sizes.state_length(layer) if carries_state else 0
    return pages * sizes.block_length(layer) + state


def merge_segments(segments: Segments) -> Segments:
    """Return the segments with neighbours merged if they are contiguous in both arenas."""
    if len(segments) == 0:
        return segments
    ends = segments[:-1, :2] + segments[:-1, 2:]
    starts = np.concatenate([[0], np.flatnonzero((segments[1:, :2] != ends).any(axis=1)) + 1])
    merged: Segments = segments[starts]
    merged[:, 2] = np.add.reduceat(segments[:, 2], starts)
    return merged


def check_bounds(segments: Segments, local_size: int, remote_size: int) -> None:
    """Raise OutOfBounds naming the first segment outside the local or the remote arena."""
    if len(segments) == 0 or _inside(segments, local_size, remote_size):
        return
    length = segments[:, 2]
    for side, column, size in (("local", 0, local_size), ("remote", 1, remote_size)):
        offset = segments[:, column]
        # Not offset + length > size: near 2^63 the sum wraps around.
        bad = np.flatnonzero(
            (offset < 0) | (length < 1) | (length > size) | (offset > size - length)
        )
        if len(bad):
            index = int(bad[0])
            raise OutOfBounds(
                f"segment {index}: {side} bytes at {int(offset[index])} of length "
                f"{int(length[index])} are outside the {size} registered"
            )


def _inside(segments: Segments, local_size: int, remote_size: int) -> bool:
    """Return True if all segments are inside both arenas. Makes as few passes as possible, because
    it runs before every post."""
    local, remote, length = segments[:, 0], segments[:, 1], segments[:, 2]
    if int(segments.min()) < 0 or int(length.min()) < 1:
        return False
    # Both offsets are not negative, so no difference leaves int64.
    return bool((local <= local_size - length).all()) and bool(
        (remote <= remote_size - length).all()
    )


Indices = NDArray[np.int32]


@dataclass(frozen=True)
class Strip:
    """Row of equally long units in an arena: `count` units of `length` bytes, the first at byte
    `offset`, `stride` bytes apart."""

    offset: int
    length: int
    stride: int
    count: int


@dataclass(frozen=True)
class UnitPairs:
    """Pairs of unit indices: unit local[i] is sent to unit remote[i]. Both are [units] int32."""

    local: Indices
    remote: Indices


@dataclass(frozen=True)
class TransferUnits:
    """Numbering of an arena's units, so a chunk can be posted as indices.

    A unit is a block, or the state of one layer in one slot. Every segment is one unit or a run of
    blocks. Knows an arena's geometry, but not the kinds of layers, ids of requests or transports.
    Pure. Invariant: unit i of two arenas with one layout has the same length.

    block_bytes, slab_bytes: bytes of a block and of a slab. states: byte range of each layer's
    state in a slab.
    """

    block_bytes: int
    slab_bytes: int
    states: tuple[Span, ...]

    @staticmethod
    def of(layout: CacheLayout) -> "TransferUnits":
        return TransferUnits(layout.block_bytes, layout.slab_bytes, layout.states)

    def strips(self, arena_bytes: int) -> list[Strip]:
        """Return all units of an arena by their indices: blocks, then each layer's states."""
        slabs = arena_bytes // self.slab_bytes
        blocks = slabs * self.slab_bytes // self.block_bytes
        states = [Strip(span.offset, span.length, self.slab_bytes, slabs) for span in self.states]
        return [Strip(0, self.block_bytes, self.block_bytes, blocks), *states]

    @cached_property
    def _numbers(self) -> dict[Span, int]:
        return {span: number for number, span in enumerate(self.states)}

    def indices(self, segments: Segments, local_bytes: int, remote_bytes: int) -> UnitPairs | None:
        """Return the segments as pairs of unit indices; None if a segment is not made of whole
        units.

        segments: [n, 3] int64, inside both arenas. local_bytes, remote_bytes: sizes of the two
        arenas.
        """
        whole = (segments % self.block_bytes == 0).all(axis=1)
        runs = segments if whole.all() else segments[whole]
        counts = runs[:, 2] // self.block_bytes
        local = _runs(runs[:, 0] // self.block_bytes, counts)
        remote = _runs(runs[:, 1] // self.block_bytes, counts)
        if len(runs) == len(segments):
            return UnitPairs(local, remote)
        # One by one: a chunk has few states, and an operation on an array costs as much as one of
        # them.
        states = []
        for here, there, length in segments[~whole].tolist():
            pair = (
                self._state(here, length, local_bytes),
                self._state(there, length, remote_bytes),
            )
            if None in pair:
                return None
            states.append(pair)
        numbers = np.array(states, dtype=np.int32)
        return UnitPairs(
            np.concatenate([local, numbers[:, 0]]), np.concatenate([remote, numbers[:, 1]])
        )

    def _state(self, offset: int, length: int, arena_bytes: int) -> int | None:
        """Return the unit index of the state with this offset and length; None without one."""
        slot, within = divmod(offset, self.slab_bytes)
        number = self._numbers.get(Span(within, length))
        if number is None:
            return None
        slabs = arena_bytes // self.slab_bytes
        return slabs * self.slab_bytes // self.block_bytes + number * slabs + slot


def _runs(firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> Indices:
    """Return the indices of all runs, end to end: counts[i] consecutive ones from firsts[i] on."""
    if len(counts) == 0:
        return np.empty(0, dtype=np.int32)
    ends = np.cumsum(counts)
    steps = np.arange(int(ends[-1])) - np.repeat(ends - counts, counts)
    numbers: Indices = (np.repeat(firsts, counts) + steps).astype(np.int32)
    return numbers


Offsets = NDArray[np.int64]


@dataclass(frozen=True)
class Spread:
    """Places of the ranks' arenas in this process's address space, each on a GPU of its own.

    A region offset counts as if the arenas were one behind another. A kernel's offset counts from
    the lowest address. Pure. Invariant: a placed run of bytes is inside one arena.

    addresses: address of each arena in this process. size: bytes of each arena. stride: bytes
    between the beginnings of two arenas in the region.
    """

    addresses: tuple[int, ...]
    size: int
    stride: int

    @property
    def region_bytes(self) -> int:
        return (len(self.addresses) - 1) * self.stride + self.size

    @property
    def begin(self) -> int:
        """Return the lowest address of any arena."""
        return min(self.addresses)

    @property
    def extent(self) -> int:
        """Return the bytes from the lowest address to the end of the highest arena; most of them
        may belong to no arena."""
        return max(self.addresses) + self.size - self.begin

    @cached_property
    def _from_begin(self) -> Offsets:
        return np.array(self.addresses, dtype=np.int64) - self.begin

    def placed(self, offsets: Offsets, lengths: Offsets) -> Offsets:
        """Convert region offsets of byte runs to offsets from `begin`, the lowest address. Raises
        OutOfBounds naming the first run not inside one arena."""
        arenas = offsets // self.stride
        inside = offsets - arenas * self.stride
        wrong = (arenas < 0) | (arenas >= len(self.addresses)) | (lengths < 1)
        wrong |= inside > self.size - lengths
        if wrong.any():
            index = int(wrong.argmax())
            raise OutOfBounds(
                f"segment {index}: bytes at {int(offsets[index])} of length {int(lengths[index])} "
                f"are in none of {len(self.addresses)} arenas of {self.size}, {self.stride} apart"
            )
        placed: Offsets = self._from_begin[arenas] + inside
        return placed
