"""Ids that a remote side may use once the device is done with them.

A sender obeys no stream: it may write to ids, or read from them, only once all that was launched
or copied for their last owners has ended. Thread rule: the engine loop's.
"""

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from tasuki.engine.runner.base import Passed, Runner

Item = TypeVar("Item")


class AtRestQueue(Generic[Item]):
    """Items leave in order, each once everything launched before its put() has ended."""

    def __init__(self, runner: Runner, release: Callable[[Item], None]) -> None:
        self._runner = runner
        self._release = release
        self._items: deque[tuple[Passed, Item]] = deque()

    def put(self, item: Item) -> None:
        """It leaves at once where the device rests already."""
        self._items.append((self._runner.passed(), item))
        self.advance()

    def advance(self) -> None:
        """Release what is at rest by now."""
        while self._items and self._items[0][0]():
            self._release(self._items.popleft()[1])

    @property
    def waiting(self) -> bool:
        """Whether an item waits for the device."""
        return bool(self._items)
