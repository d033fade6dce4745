"""The workloads given to every measured cache, as token arrays.

Every cache's script prints one flat dict {row: number}. Rows of one name time the same work.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

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


@dataclass(frozen=True)
class Question:
    """A chat about pictures. prompt, answer: keys. opening: last tokens of the prompt not in the
    next turn, since it leaves the answer's thoughts out; 0: it goes on behind the answer. pictures:
    place of the first placeholder, number of placeholders and the picture's number, ascending."""

    prompt: Tokens
    answer: Tokens
    opening: int
    pictures: tuple[tuple[int, int, int], ...]


CLOSES = 248_054
"""Id of the token behind a picture."""


@dataclass(frozen=True)
class Questions:
    """Questions about documents, each a chat of its own: a shared head, the document's pictures,
    each with a short text before it, the question, and the answer's opening.

    documents: number of documents; asked: questions about each; pages: pictures of a document.
    tokens: of a picture, least and most. words: of a question, least and most. at_once: documents
    with open questions at a time. grows: a question follows the answers to those before it, with a
    picture of its own, as an agent's screenshots do. thinks: answers have thoughts, left out of the
    next prompt.
    """

    documents: int
    asked: int
    pages: int = 1
    tokens: tuple[int, int] = (256, 1_536)
    words: tuple[int, int] = (8, 40)
    at_once: int = 24
    grows: bool = False
    thinks: bool = False

    head = 24
    opening = 8
    answered = (8, 60)

    def shortened(self) -> "Questions":
        """Return the trace with a tenth of the documents."""
        return replace(self, documents=max(self.at_once, self.documents // 10))

    def __iter__(self) -> Iterator[Question]:
        random = np.random.default_rng(17)
        head = prompt(16, self.head)
        # Each open document: its history, its pictures, and the number of questions left.
        opened: list[tuple[Tokens, list[tuple[int, int, int]], int]] = []
        begun = pictures = 0
        fresh = False
        while opened or begun < self.documents:
            if begun < self.documents and len(opened) < self.at_once:
                opened.append((head, [], self.asked))
                begun += 1
                fresh = True
            index = len(opened) - 1 if fresh else int(random.integers(len(opened)))
            history, runs, left = opened[index]
            for _ in range(self.pages if fresh else int(self.grows)):
                size = int(random.integers(*self.tokens))
                before = random.integers(0, VOCABULARY, 6, dtype=np.int32)
                keys = random.integers(-(2**31), 0, size + 1, dtype=np.int64).astype(np.int32)
                runs = [*runs, (len(history) + len(before) + 1, size, pictures)]
                closing = np.array([CLOSES], dtype=np.int32)
                history = np.concatenate([history, before, keys, closing])
                pictures += 1
            fresh = False
            words = random.integers(0, VOCABULARY, random.integers(*self.words), dtype=np.int32)
            answer = random.integers(0, VOCABULARY, random.integers(*self.answered), dtype=np.int32)
            asked = np.concatenate([history, words, prompt(18, self.opening)])
            opening = self.opening if self.thinks else 0
            yield Question(asked, answer, opening, tuple(runs))
            if self.grows:
                history = np.concatenate([asked[: len(asked) - opening], answer])
            opened[index] = history, runs, left - 1
            if left == 1:
                del opened[index]


QUESTIONS = {
    "short questions": Questions(600, 5),
    "long questions": Questions(600, 5, words=(70, 300)),
    "documents": Questions(150, 6, pages=5),
    "one question each": Questions(2_000, 1),
    "screenshots": Questions(120, 12, grows=True),
    "short questions, thoughts": Questions(600, 5, thinks=True),
    "long questions, thoughts": Questions(600, 5, words=(70, 300), thinks=True),
    "screenshots, thoughts": Questions(120, 12, grows=True, thinks=True),
}
