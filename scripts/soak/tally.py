"""The counts of a soak, and the verdict on each token."""

from collections.abc import Sequence

from scripts import tally
from tasuki.cli.demo import TIE_MARGIN


class Tally(tally.Tally):
    longest_rest = 0.0
    """The longest a round took to come to rest, seconds."""

    def trouble(self, kind: str, story: str) -> None:
        """kind: "wrong", "leaks" or "unexpected"."""
        self.count(kind)
        self.troubles.append(f"{kind}: {story}")

    def rested(self, seconds: float) -> None:
        self.longest_rest = max(self.longest_rest, seconds)

    def judge(
        self, tokens: Sequence[int], expected: Sequence[int], margins: Sequence[float], story: str
    ) -> None:
        """Compare what a client got, whole or not, with the undisturbed answer and its margins.
        Behind a near tie the two are other texts, and not compared."""
        for position, token in enumerate(tokens):
            if position >= len(expected):
                self.trouble("wrong", f"{story}: more than {len(expected)} tokens")
                return
            if token == expected[position]:
                self.count("tokens")
                continue
            if margins[position] < TIE_MARGIN:
                self.count("near ties")
            else:
                self.trouble("wrong", f"{story}: token {position} of {len(expected)}")
            return

    def __str__(self) -> str:
        counts = ", ".join(
            f"{self[what]} {what}"
            for what in (
                *(
                    "answers",
                    "local fallbacks",
                    "pulls",
                    "loaded tokens",
                    "left",
                    "lost with decode",
                    "tokens",
                ),
                *("drafts", "accepted drafts"),
                *("near ties", "wrong", "leaks", "unexpected"),
            )
        )
        faults = ", ".join(f"{name} {times}" for name, times in sorted(self.faults.items()))
        return f"{counts}; at rest within {self.longest_rest:.1f} s; faults: {faults or 'none'}"
