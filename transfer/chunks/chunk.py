"""Layer chunks: layers of one forward sent together, the step for sending them, and their
destination ids.

The values are plain and immutable, except `StepCounter`. A step is one layer of any kind with its
KV and state finally written; the counter counts them from the engine's start. It is compiled
(cpp_cache/steps/step_counter.h), because its threads must not wait for the interpreter. Thread rule
of the counter: one thread counts; any thread reads, waits and sets alarms. Invariant: its value
only grows.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasuki.pycache._cpp_cache import StepCounter as StepCounter
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.errors import OutOfBounds

Run = tuple[int, int]
"""First layer and end layer (exclusive) of one layer chunk."""

_BEFORE_ANY_TICK = -(2**16)
"""Step counter's value before any layer. A header's layer numbers have 16 bits, so every layer of a
forward beginning here counts as finished."""


@dataclass(frozen=True)
class FinishedLayers:
    """Layers finished by one forward for one transfer's prompt.

    first_tick: the step counter's value before the forward's first layer; layer l is finished at
    first_tick + l + 1. first_logical_page: logical number of the first page. local_pages: the
    sender's page ids; local_pages[i] holds logical page first_logical_page + i. Only the prompt's
    last page may be incomplete. state_slot: the sender's slot with the prompt's final state; None
    except on the transfer's last forward. ending: number of prompts with this forward as their last
    one.
    """

    first_tick: int
    first_logical_page: int
    local_pages: tuple[int, ...]
    state_slot: int | None
    ending: int = 1

    @classmethod
    def long_finished(
        cls, first_logical_page: int, local_pages: tuple[int, ...], state_slot: int
    ) -> "FinishedLayers":
        """Return the plan for layers finished by earlier forwards: their chunks may go at once."""
        return cls(_BEFORE_ANY_TICK, first_logical_page, local_pages, state_slot)

    @property
    def is_long_finished(self) -> bool:
        return self.first_tick < 0

    @property
    def end_logical_page(self) -> int:
        return self.first_logical_page + len(self.local_pages)

    def without_pages_before(self, logical_page: int) -> "FinishedLayers":
        """Return this plan without the pages before `logical_page`, which the receiver has."""
        held = min(max(logical_page - self.first_logical_page, 0), len(self.local_pages))
        return replace(
            self,
            first_logical_page=self.first_logical_page + held,
            local_pages=self.local_pages[held:],
        )


_HEADER = struct.Struct("<4sQQIHHIIB")
_MAGIC = b"TSK1"
_STATE_FLAG = 1
_CODE_SHIFT = 1


@dataclass(frozen=True)
class ChunkHeader:
    """Header of one layer chunk: it names the chunk's bytes.

    The bytes are those of layers first_layer to end_layer (exclusive). They are `pages` pages from
    first_page on in layers with pages and, with carries_state, the state of every layer with one.
    """

    sequence: int
    first_layer: int
    end_layer: int
    first_page: int
    pages: int
    carries_state: bool

    def pack(self, transfer_id: int, generation: int, code: int = 0) -> bytes:
        """Return the notification sent with the chunk. code: number of the wire's precision."""
        return _HEADER.pack(
            _MAGIC,
            transfer_id,
            generation,
            self.sequence,
            self.first_layer,
            self.end_layer,
            self.first_page,
            self.pages,
            self.carries_state | code << _CODE_SHIFT,
        )

    @staticmethod
    def unpack(notification: bytes, code: int = 0) -> tuple[int, int, "ChunkHeader"]:
        """Return (transfer id, generation, header) of a notification. code: number of this
        receiver's precision. Raises ValueError on bytes impossible for a sender of this version and
        precision."""
        if len(notification) != _HEADER.size:
            raise ValueError(f"a notification has {_HEADER.size} bytes, not {len(notification)}")
        magic, transfer_id, generation, *numbers, flags = _HEADER.unpack(notification)
        if magic != _MAGIC:
            raise ValueError(f"a notification starts with {_MAGIC!r}, not {magic!r}")
        if flags >> _CODE_SHIFT != code:
            raise ValueError(
                f"a layer chunk is of precision {flags >> _CODE_SHIFT}, ours is {code}"
            )
        sequence, first_layer, end_layer, first_page, pages = numbers
        carries_state = bool(flags & _STATE_FLAG)
        header = ChunkHeader(sequence, first_layer, end_layer, first_page, pages, carries_state)
        return transfer_id, generation, header


def code_of(notification: bytes, codes: Sequence[int]) -> int:
    """Return the precision code of the notification if it is one of `codes`. Otherwise return the
    first of `codes`, and unpack() then rejects the notification."""
    code = notification[-1] >> _CODE_SHIFT if notification else codes[0]
    return code if code in codes else codes[0]


@dataclass(frozen=True)
class LayerChunk:
    """Layer chunk: a run of layers of one forward sent together, with the sender's own page and
    slot ids.

    It may be posted once the step counter has reached `tick`. Only the header travels with the
    chunk's bytes: it names the arrived logical bytes. Knows layers, steps and logical pages, but no
    bytes, peers or states of transfers.
    """

    header: ChunkHeader
    tick: int
    local_pages: tuple[int, ...]
    local_slot: int | None


def cut(
    plan: FinishedLayers, runs: Sequence[tuple[int, int]], first_sequence: int
) -> list[LayerChunk]:
    """Return the layer chunks of one forward, in order. runs: (first layer, end layer) of each
    chunk. first_sequence: number of the first chunk.

    A layer with nothing to send is in a chunk too, because receivers count on one for every layer.
    REQUIRES: every layer of the forward is in exactly one run, in order.
    """
    chunks = []
    for sequence, (first, end) in enumerate(runs, first_sequence):
        header = ChunkHeader(
            sequence=sequence,
            first_layer=first,
            end_layer=end,
            first_page=plan.first_logical_page,
            pages=len(plan.local_pages),
            carries_state=plan.state_slot is not None,
        )
        chunks.append(LayerChunk(header, plan.first_tick + end, plan.local_pages, plan.state_slot))
    return chunks


@dataclass(frozen=True)
class Destination:
    """Destination of a transfer's bytes: the receiver's page and slot ids, checked before anything
    is posted.

    pages[i]: the receiver's page for logical page first_page + i, up to the prompt's last page.
    slot: the receiver's slot for the prompt's final state; None: the state stays with the sender.
    """

    first_page: int
    pages: tuple[int, ...]
    slot: int | None

    @property
    def end_page(self) -> int:
        return self.first_page + len(self.pages)

    def check(self, layout: CacheLayout, slabs: int) -> None:
        """Raise OutOfBounds if a page or slot id of this destination is outside an arena of `slabs`
        slabs, or given twice."""
        if self.first_page < 0:
            raise OutOfBounds(f"grant: first_page {self.first_page} is negative")
        check_pages(layout, slabs, self.pages)
        if self.slot is not None:
            check_slot(slabs, self.slot)
        if len(set(self.pages)) != len(self.pages):
            raise OutOfBounds("grant: a page id is given twice")
        blocks = layout.blocks_per_slab
        if any(page // blocks == self.slot for page in self.pages):
            raise OutOfBounds(f"grant: slot {self.slot} overlaps the slab of a granted page")


def check_pages(layout: CacheLayout, slabs: int, pages: tuple[int, ...]) -> None:
    """Raise OutOfBounds for the first page id outside an arena of `slabs` slabs."""
    for index, page in enumerate(pages):
        if not layout.valid_page(page, slabs):
            raise OutOfBounds(f"page id {page} at index {index} is no page of {slabs} slabs")


def check_slot(slabs: int, slot: int) -> None:
    if not 0 <= slot < slabs:
        raise OutOfBounds(f"slot id {slot} is outside the {slabs} slabs registered")


def granted_pages(destination: Destination, header: ChunkHeader) -> tuple[int, ...]:
    """Return the receiver's page ids for the chunk's pages."""
    first = header.first_page - destination.first_page
    return destination.pages[first : first + header.pages]
