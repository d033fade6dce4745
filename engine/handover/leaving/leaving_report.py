"""What an engine that ends says of the states that it leaves: each as its end is known, all of them
to whoever asked. Owns the counts and the queries. Thread rule: the engine loop's. Invariant: every
query is answered once, by what was counted until then."""

from collections import Counter
from collections.abc import Callable

from tasuki.engine import messages as m


class LeavingReport:
    def __init__(self, emit: Callable[[m.Outbox], None]) -> None:
        self._emit = emit
        self._asked: list[int] = []
        self._outcomes: Counter[m.HeirOutcome] = Counter()
        self._tokens = self._bytes = 0

    @property
    def asked(self) -> bool:
        """Whether a query waits."""
        return bool(self._asked)

    def ask(self, query_id: int) -> None:
        self._asked.append(query_id)

    def ended(self, outcome: m.HeirOutcome, tokens: int, size: int = 0, heir: str = "") -> None:
        """Of a state of so many tokens. size: bytes that the heir pulled."""
        self._outcomes[outcome] += 1
        if outcome is m.HeirOutcome.TAKEN:
            self._tokens += tokens
            self._bytes += size
        self._emit(m.StateLeft(outcome, tokens, size, heir))

    def answer(self, untried: int) -> None:
        """untried: states that nobody was asked to take."""
        asked, self._asked = self._asked, []
        states = dict(self._outcomes)
        for query_id in asked:
            self._emit(m.LeftToHeirs(query_id, states, self._tokens, self._bytes, untried))
