"""What a node is expected to hold: prompts sent to it, and how far reports are trusted.

Thread rule: one thread at a time.
"""

from collections import OrderedDict
from collections.abc import Sequence

REMEMBERED_SECONDS = 600.0
MOST_NAMES = 1 << 16
MOST_NODES = 8

Beginning = tuple[int, int]
"""Tokens of a prompt's beginning, and its name: FleetIndex.look_up's."""


class SentPrefixes:
    """Which nodes were sent prompts that begin alike, as one who sent them remembers it.

    A node where a prompt's beginning was computed holds its KV, though a state may stand elsewhere:
    the next prompt that begins so leaves one where they part, if it comes there. An index of states
    shows nothing of that, nor of prompts that still wait. Owns names of beginnings at some depths,
    for a while. Owns no clock: callers bring seconds. Thread rule: one thread at a time.
    Invariants: a name is forgotten REMEMBERED_SECONDS after its last prompt, and earlier where
    there are more than MOST_NAMES; of a name's nodes those that were sent last are kept.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[int, dict[int, float]] = OrderedDict()  # node, when

    def known(self, prompt: Sequence[Beginning], now: float) -> dict[int, int]:
        """By node, tokens of the longest beginning of the prompt that was sent there."""
        found: dict[int, int] = {}
        for tokens, name in reversed(prompt):
            for node, at in self._sent.get(name, {}).items():
                if at >= now - REMEMBERED_SECONDS:
                    found.setdefault(node, tokens)
        return found

    def send(self, prompt: Sequence[Beginning], node: int, now: float) -> None:
        for _, name in prompt:
            nodes = self._sent.setdefault(name, {})
            nodes.pop(node, None)
            nodes[node] = now
            if len(nodes) > MOST_NODES:
                del nodes[next(iter(nodes))]
            self._sent.move_to_end(name)
        while self._sent and self._is_over(now):
            self._sent.popitem(last=False)

    def _is_over(self, now: float) -> bool:
        latest = max(next(iter(self._sent.values())).values())
        return len(self._sent) > MOST_NAMES or latest < now - REMEMBERED_SECONDS


_FADE = 0.95
"""What one prompt counts beside the next one."""
_LEAST_PROMPTS = 4.0
_DOUBTED_BELOW, _BELIEVED_FROM = 0.5, 0.9


class HintTrust:
    """Whether what a node is said to hold is found there: what it says of itself may be old,
    damaged or a lie.

    Of prompts that were sent there, the tokens that were expected beside those that were found,
    later ones counting more. While half of them or more are missing, no more is expected of the
    node than that part; it is believed again once nine tenths are found. Invariant: of a node of
    which little is known everything is believed. Thread rule: one thread at a time.
    """

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
