"""What the pages and slots of a tier were written with, and what those of the arena have now.

A digest is of the bytes as the arena lays them out and not of their place
(transfer/windows/digest.py), so that what the arena had and what came back from below are equal
exactly if their digests are. A copy from one tier to the next takes the digest along: what rotted
on its way fails where it is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tasuki.transfer.windows.digest import ArenaWindow, Digester
from tasuki.transfer.windows.window import WindowHeader


@dataclass(frozen=True)
class TierDigests:
    """By id of the tier; none of what was never written whole. Thread rule: the thread that copies
    to the tier writes; who holds a copy of use may read its digest."""

    pages: dict[int, int] = field(default_factory=dict)
    slots: dict[int, int] = field(default_factory=dict)


class ArenaDigests:
    """Thread rule: any, as of a digester."""

    def __init__(self, digester: Digester, layers: int) -> None:
        self._digester = digester
        self._layers = layers

    def of_pages(self, pages: Sequence[int]) -> list[int]:
        header = WindowHeader(0, 0, self._layers, 0, 1, carries_state=False)
        return self._digester.digest_all(
            [ArenaWindow(0, 0, header, (page,), None) for page in pages]
        )

    def of_slot(self, slot: int) -> int:
        header = WindowHeader(0, 0, self._layers, 0, 0, carries_state=True)
        return self._digester.digest_all([ArenaWindow(0, 0, header, (), slot)])[0]
