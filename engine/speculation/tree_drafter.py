"""Drafts from what stands elsewhere behind the same tokens: in the prompt, in the answer so far, or
in what others of the same salt left in the tree. Needs no weights; an agent that writes a file
anew writes most of it as it was.

Owns an index of its own request's tokens, and how many drafts are worth a try: twice as many after
all held, half as many after none did. Where that are too few to be proposed, what was found is only
watched, until one of it comes. Thread rule: the engine loop's.
"""

from collections.abc import Sequence

import numpy as np

from tasuki.engine.forward_plan import Ints

from .drafter import DraftSource
from .suffix_index import ANCHOR_TOKENS, SuffixIndex

_OWN_TOKENS = 1 << 17
"""Of one request, its newest ones: 5 MiB where it has so many."""


class TreeDrafter:
    def __init__(
        self, prompt: Ints, salt: bytes, most: int, left: SuffixIndex, least: int = 1
    ) -> None:
        """most: tokens of the answer. left: what others left. least: fewer drafts than these are
        not worth a try; at most 2."""
        self._salt = salt
        self._left = left
        self._own = SuffixIndex(min(len(prompt) + most, _OWN_TOKENS))
        self._own.begin(salt)
        self._prompt = prompt
        self._seen = 0
        self._tail = prompt[-ANCHOR_TOKENS:].tolist()
        self._length = 2
        self._least = least
        self._watched: int | None = None

    @property
    def source(self) -> DraftSource:
        return DraftSource.TREE

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        if not self._seen:
            self._own.append(self._prompt)
        new = list(output[self._seen :])
        self._own.append(np.array(new, dtype=np.int32))
        self._seen = len(output)
        if new and new[0] == self._watched:
            self._length = self._least
        self._watched = None
        self._tail = (self._tail + new)[-ANCHOR_TOKENS:]
        if len(self._tail) < ANCHOR_TOKENS:
            return []
        most = min(most, self._length)
        own = self._own.follow(self._tail, self._salt, most)
        found = own or self._left.follow(self._tail, self._salt, most)
        if self._length < self._least:
            self._watched = found[0] if found else None
            return []
        return found

    def verified(self, drafted: int, accepted: int) -> None:
        if accepted == drafted == self._length:
            self._length *= 2
        elif not accepted:
            self._length = max(1, self._length // 2)
