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
    def held(self, caller: Caller) -> Iterator[None]:
        """One more, inside `with`. Raises the refusal."""
        self.check(caller)
        self._held[caller.name] += 1
        try:
            yield
        finally:
            self._held[caller.name] -= 1
            if not self._held[caller.name]:
                del self._held[caller.name]

    def check(self, caller: Caller) -> None:
        """Raises the refusal where the caller may hold no more now."""
        if self._is_capped(caller) and self._held[caller.name] >= self._per_key:
            raise self._refusal(
                f"{caller.name} has {self._per_key} {self._what}, as many as one key may: end one "
                "first"
            )
        if self._in_all and self._held.total() >= self._in_all:
            raise self._refusal(
                f"this node has {self._in_all} {self._what}, as many as it may: ask again later"
            )

    def _is_capped(self, caller: Caller) -> bool:
        return (
            self._per_key > 0 and caller.is_one_of_many and self._uncapped.isdisjoint(caller.scopes)
        )
