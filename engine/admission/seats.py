"""How many requests may run beside each other.

With a target for the time between two tokens: as many as a step has time for, found by doubling.
One target for all, the node's own: any that a request could name would let it keep others out, or
let others in to whom it was promised otherwise. Thread rule: the engine loop's.
"""

from .step_outlook import StepOutlook

_SEATS_A_PLACE = 8
"""For so many seats one place more: about that share of a full batch's answers end while a prompt
is computed and sent, and their rows would be empty until then."""


class Seats:
    def __init__(self, rows: int, per_token: float | None) -> None:
        """rows: of a forward, at most. per_token: seconds of a step; None: however long it
        takes."""
        self.steps = StepOutlook()
        self._rows = rows
        self._per_token = per_token

    @property
    def count(self) -> int:
        """Of requests that run. More may run already: none is ever sent away."""
        if self._per_token is None:
            return self._rows
        return min(self._rows, self.steps.fitting(self._per_token))

    @property
    def places(self) -> int:
        """The same, with those whose prompts are computed elsewhere."""
        if self._per_token is None:
            return self._rows + -(-self._rows // _SEATS_A_PLACE)
        return self.count
