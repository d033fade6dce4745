"""Which nodes were sent prompts that begin alike, as one who sent them remembers it.

A node where a prompt's beginning was computed holds its KV, though a state may stand elsewhere: the
next prompt that begins so leaves one where they part, if it comes there. An index of states shows
nothing of that, nor of prompts that still wait.

Owns names of beginnings at some depths, for a while. Owns no clock: callers bring seconds. Thread
rule: one thread at a time.
Invariants: a name is forgotten REMEMBERED_SECONDS after its last prompt, and earlier where there
are more than MOST_NAMES; of a name's nodes those that were sent last are kept.
"""

from collections import OrderedDict
from collections.abc import Sequence

REMEMBERED_SECONDS = 600.0
MOST_NAMES = 1 << 16
MOST_NODES = 8

Beginning = tuple[int, int]
"""Tokens of a prompt's beginning, and its name: FleetIndex.look_up's."""


class SentPrefixes:
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
