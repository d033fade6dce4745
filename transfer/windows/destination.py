"""Where a room's bytes go: the receiver's page and slot ids, checked before anything is posted."""

from dataclasses import dataclass

from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.errors import OutOfBounds

from .window import WindowHeader


@dataclass(frozen=True)
class Destination:
    """pages[i] takes logical page first_page + i, up to the prompt's last; slot takes its final
    state, which stays with the sender where there is none."""

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
