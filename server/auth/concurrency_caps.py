"""Caps on what callers hold at once: requests in flight, or watches.

Owns a count for each caller that holds any. One event loop's thread. Invariants: a refusal counts
for nothing; what is held is given back exactly once. A key's cap applies where there are several
keys: the only key takes from nobody.
"""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from tasuki.server.errors import ServerError

from .caller import Caller, Scope


class ConcurrencyCaps:
    def __init__(
        self,
        refusal: type[ServerError],
        what: str,
        per_key: int,
        in_all: int = 0,
        uncapped: frozenset[Scope] = frozenset(),
    ) -> None:
        """refusal: what is raised beyond a cap. what: the held thing's name in messages. per_key,
        in_all: caps; 0 sets none. uncapped: keys of these scopes stand for many callers."""
        self._refusal = refusal
        self._what = what
        self._per_key = per_key
        self._in_all = in_all
        self._uncapped = uncapped
        self._held: Counter[str] = Counter()

    @contextmanager
    def held(self, caller: Caller, count: int = 1) -> Iterator[None]:
        """So many more, inside `with`. Raises the refusal."""
        self.check(caller, count)
        self._held[caller.name] += count
        try:
            yield
        finally:
            self._held[caller.name] -= count
            if not self._held[caller.name]:
                del self._held[caller.name]

    def check(self, caller: Caller, count: int = 1) -> None:
        """Raises the refusal where the caller may not hold so many more now."""
        held = self._held[caller.name]
        if self._is_capped(caller) and held + count > self._per_key:
            if count > 1:
                raise self._refusal(
                    f"{caller.name} asks for {count} at once and has {held} {self._what}, of "
                    f"{self._per_key} that one key may: ask for fewer"
                )
            raise self._refusal(
                f"{caller.name} has {self._per_key} {self._what}, as many as one key may: end one "
                "first"
            )
        if self._in_all and self._held.total() + count > self._in_all:
            raise self._refusal(
                f"this node has {self._in_all} {self._what}, as many as it may: ask again later"
            )

    def _is_capped(self, caller: Caller) -> bool:
        return (
            self._per_key > 0 and caller.is_one_of_many and self._uncapped.isdisjoint(caller.scopes)
        )
