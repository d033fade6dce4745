"""Whether what a node is said to hold is found there: what it says of itself may be old, damaged or
a lie.

Of prompts that were sent there, the tokens that were expected beside those that were found, later
ones counting more. While half of them or more are missing, no more is expected of the node than
that part; it is believed again once nine tenths are found. Invariant: of a node of which little is
known everything is believed. Thread rule: one thread at a time.
"""

_FADE = 0.95
"""What one prompt counts beside the next one."""
_LEAST_PROMPTS = 4.0
_DOUBTED_BELOW, _BELIEVED_FROM = 0.5, 0.9


class HintTrust:
    def __init__(self) -> None:
        self._expected = 0.0
        self._found = 0.0
        self._prompts = 0.0
        self.doubted = False

    def note(self, expected: int, found: int) -> None:
        """Tokens of one prompt. expected: as the node is said to hold, believed or not; where that
        is nothing it says nothing."""
        if expected <= 0:
            return
        self._expected = _FADE * self._expected + expected
        self._found = _FADE * self._found + max(0, min(found, expected))
        self._prompts = _FADE * self._prompts + 1
        share = self._share
        if self.doubted:
            self.doubted = share < _BELIEVED_FROM
        else:
            self.doubted = share < _DOUBTED_BELOW and self._prompts >= _LEAST_PROMPTS

    def believed(self, usable: int) -> int:
        """Of so many tokens that the node is said to hold."""
        return int(usable * self._share) if self.doubted else usable

    @property
    def _share(self) -> float:
        return self._found / self._expected
