"""The workloads given to every measured cache, as token arrays.

Every cache's script prints one flat dict {row: number}. Rows of one name time the same work.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]

PAGE = 64
VOCABULARY = 248_000
LENGTHS = (65_536, 262_144, 1_048_576)
CHUNK = 8_192
SHORT_TOKENS = 256
SHORT_BATCH = 64
LEAF_TOKENS = 256
HEAD_TOKENS = 1_024
SCALES = (1_000, 100_000, 2_000_000)
CROWDS = (10, 1_000, 100_000)
STRANGERS = 300


def prompt(seed: int, tokens: int) -> Tokens:
    return np.random.default_rng(seed).integers(0, VOCABULARY, tokens, dtype=np.int32)


@dataclass(frozen=True)
class Turn:
    """One turn of a session. `log`: the session's tokens. The request is the first `prompt` tokens
    of `log`. After the answer the first `end` tokens are known."""

    session: int
    log: Tokens
    prompt: int
    end: int


class Agents:
    """Agent sessions with a common system prompt of 4K tokens. A session starts at 50K tokens and
    grows by 800 tokens a turn."""

    turns = 12
    first = 50_000
    step = 800
    shared = 4_096

    def __init__(self, sessions: int) -> None:
        system = prompt(1, self.shared)
        rest = self.first - self.shared + self.step * self.turns
        self.sessions = sessions
        self._logs = [np.concatenate([system, prompt(100 + s, rest)]) for s in range(sessions)]

    def __iter__(self) -> Iterator[Turn]:
        shuffled = random.Random(3)
        order = list(range(self.sessions))
        for turn in range(self.turns):
            shuffled.shuffle(order)
            for session in order:
                asked = (self.first + self.step * turn) // PAGE * PAGE
                end = (self.first + self.step * turn + self.step // 2) // PAGE * PAGE
                yield Turn(session, self._logs[session], asked, end)


class Bushes:
    """A set of prompts: `heads` prefixes, each with `leaves` continuations."""

    def __init__(
        self,
        heads: int,
        leaves: int,
        head_tokens: int = HEAD_TOKENS,
        leaf_tokens: int = LEAF_TOKENS,
    ) -> None:
        self.heads, self.leaves = heads, leaves
        self.head_tokens, self.leaf_tokens = head_tokens, leaf_tokens

    @property
    def tokens(self) -> int:
        return self.heads * (self.head_tokens + self.leaves * self.leaf_tokens)

    @property
    def nodes(self) -> int:
        return self.heads * (self.leaves + 1)

    def __iter__(self) -> Iterator[Tokens]:
        random = np.random.default_rng(9)
        for _ in range(self.heads):
            head = random.integers(0, VOCABULARY, self.head_tokens, dtype=np.int32)
            for _ in range(self.leaves):
                leaf = random.integers(0, VOCABULARY, self.leaf_tokens, dtype=np.int32)
                yield np.concatenate([head, leaf])


class Crowd:
    """Prompts sharing one system prompt: whole pages and a few more tokens, like a chat template.
    After these each prompt has its own tokens, up to `tokens` in all."""

    shared = 15 * PAGE
    template = 8

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens
        self.start = prompt(21, self.shared + self.template)

    def prompts(self, first: int, count: int) -> Iterator[Tokens]:
        """Yield `count` prompts, numbered from `first` on; the same number gives the same
        prompt."""
        for number in range(first, first + count):
            own = prompt(1_000 + number, self.tokens - len(self.start))
            yield np.concatenate([self.start, own])


# Ends inside the page after the system prompt, and two whole pages after it.
TAILS = Crowd(Crowd.shared + 32)
CHILDREN = Crowd(Crowd.shared + 2 * PAGE)


def short_prompts(batches: int) -> list[list[Tokens]]:
    return [
        [prompt(batch * SHORT_BATCH + i, SHORT_TOKENS) for i in range(SHORT_BATCH)]
        for batch in range(batches)
    ]
