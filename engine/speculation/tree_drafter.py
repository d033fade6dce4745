"""Drafts from what stands elsewhere behind the same tokens: in the prompt, in the answer so far, or
in what others of the same salt left in the tree. Needs no weights; an agent that writes a file
anew writes most of it as it was.

Owns an index of its own request's tokens, and how many drafts are worth a try: twice as many after
all held, half as many after none did. Thread rule: the engine loop's.
"""

from collections.abc import Sequence

import numpy as np

from tasuki.engine.forward_plan import Ints

from .drafter import DraftSource
from .suffix_index import ANCHOR_TOKENS, SuffixIndex

_OWN_TOKENS = 1 << 17
"""Of one request, its newest ones: 5 MiB where it has so many."""


class TreeDrafter:
    def __init__(self, prompt: Ints, salt: bytes, most: int, left: SuffixIndex) -> None:
        """most: tokens of the answer. left: what others left."""
        self._salt = salt
        self._left = left
        self._own = SuffixIndex(min(len(prompt) + most, _OWN_TOKENS))
        self._own.begin(salt)
        self._prompt = prompt
        self._seen = 0
        self._tail = prompt[-ANCHOR_TOKENS:].tolist()
        self._length = 2

    @property
    def source(self) -> DraftSource:
        return DraftSource.TREE

    def propose(self, output: Sequence[int], most: int) -> list[int]:
        if not self._seen:
            self._own.append(self._prompt)
        new = list(output[self._seen :])
        self._own.append(np.array(new, dtype=np.int32))
        self._seen = len(output)
        self._tail = (self._tail + new)[-ANCHOR_TOKENS:]
        if len(self._tail) < ANCHOR_TOKENS:
            return []
        most = min(most, self._length)
        own = self._own.follow(self._tail, self._salt, most)
        return own or self._left.follow(self._tail, self._salt, most)

    def verified(self, drafted: int, accepted: int) -> None:
        if accepted == drafted == self._length:
            self._length *= 2
        elif not accepted:
            self._length = max(1, self._length // 2)
