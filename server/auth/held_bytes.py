"""Bytes that requests hold in a process's memory, counted by caller.

Owns the counts. One event loop's thread. Invariants: the bytes of all holds never exceed the
bound; one of several keys has at most half of the bound, so that a key cannot take the memory of
the other keys; a hold that ends gives all of its bytes back; a refusal changes no count; after a
large hold the process gives its free memory back to the system.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tasuki.server.errors import Busy, InvalidRequest
from tasuki.utils.free_memory import FreeMemory

from .caller import Caller

_MIB = 2**20
_LARGEST_MESSAGES = 16
"""The bound in messages of the largest size: one of several keys may hold eight."""
_MOST = _LARGEST_MESSAGES * 32 * _MIB
_LARGE = _MIB
"""Of one hold: what it held is worth a look through the heap."""


class HeldBytes:
    def __init__(self, most: int = _MOST, memory: FreeMemory | None = None) -> None:
        """most: bytes of all holds together. memory: of this process, which is the default."""
        self._most = most
        self._memory = memory or FreeMemory()
        self._held: Counter[str] = Counter()
        self._total = 0

    @staticmethod
    def for_messages(max_message_bytes: int) -> "HeldBytes":
        """Return counts whose bound fits a server that takes messages of that size."""
        return HeldBytes(_LARGEST_MESSAGES * max_message_bytes)

    @property
    def total(self) -> int:
        """Bytes of all holds."""
        return self._total

    def of(self, caller: Caller) -> int:
        """Return the bytes of the caller's holds."""
        return self._held[caller.name]

    @contextmanager
    def hold(self, caller: Caller, size: int = 0) -> Iterator["Hold"]:
        """Count `size` bytes inside `with`, or what resize() sets. Raises as resize() does."""
        held = Hold(self, caller)
        try:
            held.resize(size)
            yield held
        finally:
            held.resize(0)
            if held.largest > _LARGE:
                self._memory.give_back_later()

    def check(self, caller: Caller, more: int, already: int = 0) -> None:
        """Raise where the caller may not hold so many more bytes now.

        more: bytes beside those of all holds. already: bytes of the same hold, among these.
        Raises InvalidRequest where the hold alone exceeds what the caller may have, so that
        waiting would not help, and Busy where other holds leave too little.
        """
        of_caller = self._most // 2 if caller.is_one_of_many else self._most
        if already + more > of_caller:
            raise InvalidRequest(
                f"the request would hold {_mib(already + more)} of memory, and one may hold "
                f"{_mib(of_caller)}: send less, or ask for less"
            )
        if self._held[caller.name] + more > of_caller:
            raise Busy(
                f"requests of {caller.name} hold {_mib(self._held[caller.name])} of the "
                f"{_mib(of_caller)} that one key may: ask again when some have ended"
            )
        if self._total + more > self._most:
            raise Busy(
                f"requests hold {_mib(self._total)} of the {_mib(self._most)} that this node "
                "allows: ask again in a moment, or another node"
            )

    def _add(self, caller: Caller, more: int) -> None:
        self._total += more
        self._held[caller.name] += more
        if not self._held[caller.name]:
            del self._held[caller.name]


class Hold:
    """The bytes that one request holds. Made by HeldBytes.hold()."""

    def __init__(self, counts: HeldBytes, caller: Caller) -> None:
        self._counts = counts
        self._caller = caller
        self.size = 0
        """Bytes."""
        self.largest = 0
        """Bytes: the largest size so far."""

    def resize(self, size: int) -> None:
        """Count `size` bytes from now on. Raises Busy and InvalidRequest as HeldBytes.check()
        does, and then the size stays what it was; a smaller size is never refused."""
        more = size - self.size
        if more > 0:
            self._counts.check(self._caller, more, self.size)
        self._counts._add(self._caller, more)
        self.size = size
        self.largest = max(self.largest, size)

    def grow(self, more: int) -> None:
        """Count `more` bytes beside those that are counted. Raises as resize() does."""
        self.resize(self.size + more)

    def check(self, size: int) -> None:
        """Raise as resize() would, and count nothing."""
        if size > self.size:
            self._counts.check(self._caller, size - self.size, self.size)


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
