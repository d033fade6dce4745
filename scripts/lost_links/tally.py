"""Requests by how they were answered, and hand-overs that were lost by cause."""

from scripts import tally

OUTCOMES = HANDED_OVER, PULLED, LOST, HERE = (
    *("handed over", "handed over after a pull"),
    *("prefilled here after a loss", "prefilled here"),
)


class Tally(tally.Tally):
    """lost: as the decode node counts them, once all is over. slowest: seconds of an answer."""

    def __init__(self) -> None:
        super().__init__()
        self.lost: dict[str, int] = {}
        self.slowest = 0.0

    @property
    def handed_over(self) -> int:
        return self[HANDED_OVER] + self[PULLED]

    def __str__(self) -> str:
        outcomes = {outcome: self[outcome] for outcome in OUTCOMES if self[outcome]}
        parts = (outcomes, self.faults, self.lost)
        texts = [", ".join(f"{n} {name}" for name, n in sorted(part.items())) for part in parts]
        answered, faults, lost = (text or "none" for text in texts)
        text = f"{answered}; slowest {self.slowest:.1f} s; faults: {faults}"
        return f"{text}; hand-overs lost: {lost}" if self.lost else text
