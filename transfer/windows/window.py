"""Windows: layers of one forward that are sent together, when they leave, where they go.

Plain, immutable values, but for `StepCounter`: the number of layers, of any kind, whose KV and
state an engine has written for good since it started. It is compiled
(cpp_cache/steps/step_counter.h), since it is ticked and awaited where nobody may wait for the
interpreter. Thread rule of the counter: one thread ticks, any thread reads, waits and sets alarms.
Invariant: its value only grows.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tasuki.pycache._cpp_cache import StepCounter as StepCounter
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.errors import OutOfBounds

Run = tuple[int, int]
"""First layer, end layer: what one window holds."""

_BEFORE_ANY_TICK = -(2**16)
"""A header's layer numbers have 16 bits, so that any layer's tick of such a forward is past."""


@dataclass(frozen=True)
class FinishedLayers:
    """What one forward will have finished of one room's prompt.

    first_tick: the step counter's value before the forward's first layer; layer l is finished at
    first_tick + l + 1. local_pages[i] holds logical page first_logical_page + i; only complete
    pages, but for the prompt's last one. state_slot: the sender's slot with the prompt's final
    state, given on the room's last forward and on no other. ending: prompts of which it is the
    last forward, this one included if it is.
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
        """All at once of what forwards have finished before: there is no tick to wait for."""
        return cls(_BEFORE_ANY_TICK, first_logical_page, local_pages, state_slot)

    @property
    def is_long_finished(self) -> bool:
        return self.first_tick < 0

    @property
    def end_logical_page(self) -> int:
        return self.first_logical_page + len(self.local_pages)

    def without_pages_before(self, logical_page: int) -> "FinishedLayers":
        """The same forward, less the pages that the receiver holds already."""
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
class WindowHeader:
    """Names the bytes of one window: layers [first_layer, end_layer), pages [first_page, first_page
    + pages) in the full-attention ones and, with carries_state, the state in the GDN ones."""

    sequence: int
    first_layer: int
    end_layer: int
    first_page: int
    pages: int
    carries_state: bool

    def pack(self, room: int, generation: int, code: int = 0) -> bytes:
        """The notification that rides with the window. code: of the wire's precision."""
        return _HEADER.pack(
            _MAGIC,
            room,
            generation,
            self.sequence,
            self.first_layer,
            self.end_layer,
            self.first_page,
            self.pages,
            self.carries_state | code << _CODE_SHIFT,
        )

    @staticmethod
    def unpack(notification: bytes, code: int = 0) -> tuple[int, int, "WindowHeader"]:
        """(room, generation, header). Raises ValueError on bytes that no sender of this version
        writes to a receiver of that precision."""
        if len(notification) != _HEADER.size:
            raise ValueError(f"a notification has {_HEADER.size} bytes, not {len(notification)}")
        magic, room, generation, *numbers, flags = _HEADER.unpack(notification)
        if magic != _MAGIC:
            raise ValueError(f"a notification starts with {_MAGIC!r}, not {magic!r}")
        if flags >> _CODE_SHIFT != code:
            raise ValueError(f"a window is of precision {flags >> _CODE_SHIFT}, ours is {code}")
        sequence, first_layer, end_layer, first_page, pages = numbers
        carries_state = bool(flags & _STATE_FLAG)
        header = WindowHeader(sequence, first_layer, end_layer, first_page, pages, carries_state)
        return room, generation, header


def code_of(notification: bytes, codes: Sequence[int]) -> int:
    """Which of the codes that a receiver takes the notification has; the first where it has none,
    for unpack() to refuse."""
    code = notification[-1] >> _CODE_SHIFT if notification else codes[0]
    return code if code in codes else codes[0]


@dataclass(frozen=True)
class Window:
    """Windows: runs of layers of one forward that are sent together, and the headers that name
    them.

    Knows layers, ticks and logical pages; not bytes, peers or rooms' lives. A header is all that
    travels with a window's bytes: it says which logical bytes have landed.

    A header with the sender's own ids. May be posted once the step counter has reached `tick`.
    """

    header: WindowHeader
    tick: int
    local_pages: tuple[int, ...]
    local_slot: int | None


def cut(plan: FinishedLayers, runs: Sequence[tuple[int, int]], first_sequence: int) -> list[Window]:
    """The windows of one forward, one for each run of layers (first, end), in the order of their
    ticks.

    A layer with nothing to send is in a window all the same: receivers count on one for every
    layer. REQUIRES: every layer of the forward is in exactly one run, in order.
    """
    windows = []
    for sequence, (first, end) in enumerate(runs, first_sequence):
        header = WindowHeader(
            sequence=sequence,
            first_layer=first,
            end_layer=end,
            first_page=plan.first_logical_page,
            pages=len(plan.local_pages),
            carries_state=plan.state_slot is not None,
        )
        windows.append(Window(header, plan.first_tick + end, plan.local_pages, plan.state_slot))
    return windows


@dataclass(frozen=True)
class Destination:
    """Where a room's bytes go: the receiver's page and slot ids, checked before anything is posted.

    pages[i] takes logical page first_page + i, up to the prompt's last; slot takes its final state,
    which stays with the sender where there is none.
    """

    first_page: int
    pages: tuple[int, ...]
    slot: int | None

    @property
    def end_page(self) -> int:
        return self.first_page + len(self.pages)

    def check(self, layout: CacheLayout, slabs: int) -> None:
        """Raises OutOfBounds where an id is outside an arena of `slabs` slabs or given twice."""
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
    """Raises OutOfBounds naming the first id that is no page of an arena of `slabs` slabs."""
    for index, page in enumerate(pages):
        if not layout.valid_page(page, slabs):
            raise OutOfBounds(f"page id {page} at index {index} is no page of {slabs} slabs")


def check_slot(slabs: int, slot: int) -> None:
    if not 0 <= slot < slabs:
        raise OutOfBounds(f"slot id {slot} is outside the {slabs} slabs registered")


def granted_pages(destination: Destination, header: WindowHeader) -> tuple[int, ...]:
    """The receiver's ids of the window's pages."""
    first = header.first_page - destination.first_page
    return destination.pages[first : first + header.pages]
