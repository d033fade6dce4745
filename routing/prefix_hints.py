"""Expected contents of a prefill node's cache: from the prompts sent to it, and from its reports as
far as they are trusted.

Thread rule: one thread at a time.
"""

from collections import OrderedDict
from collections.abc import Sequence

REMEMBERED_SECONDS = 600.0
MOST_NAMES = 1 << 16
MOST_NODES = 8

Beginning = tuple[int, int]
"""Prefix of a prompt: its length in tokens, and its name from FleetIndex.look_up."""


class SentPrefixes:
    """Memory of recently sent prompts: for each prefix, the prefill nodes sent a prompt with it.

    A node holds the KV of a prefix it has computed, even if the state is on another node. The next
    prompt with the prefix leaves a state at the divergence if it is sent to the same node. An index
    of states shows neither this nor waiting prompts. Owns names of prefixes of some lengths, for a
    while. Owns no clock: callers pass seconds. Thread rule: one thread at a time. Invariants: a
    name is dropped REMEMBERED_SECONDS after its last prompt, and earlier if there are more than
    MOST_NAMES. A name keeps the nodes used last.
    """

    def __init__(self) -> None:
        self._sent: OrderedDict[int, dict[int, float]] = OrderedDict()  # node, time

    def known(self, prompt: Sequence[Beginning], now: float) -> dict[int, int]:
        """Return, by node number, the length in tokens of the prompt's longest prefix sent to the
        node. Prompts older than REMEMBERED_SECONDS do not count."""
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
"""Factor on the weight of earlier prompts at each new one."""
_LEAST_PROMPTS = 4.0
_DOUBTED_BELOW, _BELIEVED_FROM = 0.5, 0.9


class HintTrust:
    """Trust in a prefill node's reports of its cache. They may be old, damaged or false.

    It compares expected and found tokens over the prompts sent to the node, later ones weighted
    more. If less than half is found, only the found share of its reported tokens is expected. The
    node is trusted again once nine tenths are found. Invariant: a node sent too few prompts is
    fully trusted. Thread rule: one thread at a time.
    """

    def __init__(self) -> None:
        self._expected = 0.0
        self._found = 0.0
        self._prompts = 0.0
        self.doubted = False

    def note(self, expected: int, found: int) -> None:
        """Record one prompt's tokens. expected: tokens reported by the node, trusted or not; 0 is
        ignored. found: tokens found in its cache."""
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
        """Return the number of tokens to expect in the node's cache. It is `usable`, or for a
        doubted node the found share of it. usable: tokens reported by the node."""
        return int(usable * self._share) if self.doubted else usable

    @property
    def _share(self) -> float:
        return self._found / self._expected
