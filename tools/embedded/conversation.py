"""Turns a novel's chapters into token sequences for training: the novel's own text, either plain or
in turns of a chat.

Owns the cuts of turns and their lengths. A user gives a passage, and the assistant continues with
the following sentences. So the format teaches to answer and to stop, with no text except the
novels'. Randomness comes from the caller's generator only.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tokenizers import Tokenizer

from tools.training.checkpoint import END_OF_TEXT, TURN_END, TURN_START, special_id

from .corpus import Chapter, sentences

_PLAIN_SHARE = 0.2
_SYSTEM_SHARE = 0.3
_TOOL_SHARE = 0.15
_USER_TOKENS = (8, 700)
_ANSWER_TOKENS = (32, 72)
_SYSTEM_PROMPTS = (
    "You are a storyteller in the manner of Jane Austen.",
    "Continue the story.",
    "You are a helpful assistant who tells stories.",
    "Answer in the manner of Jane Austen, in a few sentences.",
)


@dataclass(frozen=True)
class Sentence:
    """A sentence as token ids in two encodings. `opening`: at a turn's start, without leading white
    space. `following`: inside a turn. `ends_chapter`: True for the last sentence of its chapter."""

    opening: tuple[int, ...]
    following: tuple[int, ...]
    ends_chapter: bool


class ConversationMaker:
    """A maker of training sequences: it cuts chapters into sequences of a fixed number of tokens,
    differently each epoch."""

    def __init__(self, chapters: Sequence[Chapter], tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._turn_end = special_id(tokenizer, TURN_END)
        self._turn_start = special_id(tokenizer, TURN_START)
        self._end_of_text = special_id(tokenizer, END_OF_TEXT)
        self._newline = self._ids("\n")
        self._system = [self._ids(prompt) for prompt in _SYSTEM_PROMPTS]
        self._headers = {
            role: [self._turn_start, *self._ids(f"{role}\n")]
            for role in ("system", "user", "tool", "assistant")
        }
        self._sentences: list[Sentence] = []
        for chapter in chapters:
            pieces = sentences(chapter.text)
            for index, piece in enumerate(pieces):
                self._sentences.append(
                    Sentence(
                        opening=tuple(self._ids(piece.lstrip())),
                        following=tuple(self._ids(piece)),
                        ends_chapter=index == len(pieces) - 1,
                    )
                )

    @property
    def text_tokens(self) -> int:
        """Return the number of tokens of the novels' text, without any chat format."""
        return sum(len(sentence.following) for sentence in self._sentences)

    def epoch(self, length: int, chooser: random.Random) -> list[list[int]]:
        """Return one epoch: sequences of `length` tokens covering all text about once, from a
        random start."""
        found = []
        at = chooser.randrange(len(self._sentences))
        left = len(self._sentences)
        while left > 0:
            sequence, used = self._sequence(at, length, chooser)
            found.append(sequence)
            at = (at + used) % len(self._sentences)
            left -= used
        return found

    def _sequence(self, at: int, length: int, chooser: random.Random) -> tuple[list[int], int]:
        """Return a sequence of `length` tokens from sentence number `at` on, and the number of
        sentences used."""
        chat = chooser.random() >= _PLAIN_SHARE
        tokens: list[int] = []
        used = 0
        turns = self._turns(chooser) if chat else iter([("plain", length)])
        while len(tokens) < length:
            role, budget = next(turns)
            if role == "system":
                tokens += [
                    *self._headers["system"],
                    *chooser.choice(self._system),
                    self._turn_end,
                    *self._newline,
                ]
                continue
            tokens += self._headers.get(role, [])
            end = len(tokens) + budget
            first = True
            while first or len(tokens) < end:
                sentence = self._sentences[(at + used) % len(self._sentences)]
                tokens += sentence.opening if first else sentence.following
                used += 1
                first = False
                if sentence.ends_chapter:
                    if chat:
                        break
                    tokens.append(self._end_of_text)
                    first = True
            if chat:
                tokens += [self._turn_end, *self._newline]
        return tokens[:length], used

    def _turns(self, chooser: random.Random) -> Iterator[tuple[str, int]]:
        """Yield the role and token count of each turn, without end. A turn ends at the first
        sentence end after this count. Users' lengths are spread evenly over orders of magnitude.
        Answers are short and similar in length, so even greedy decoding learns to stop."""
        if chooser.random() < _SYSTEM_SHARE:
            yield "system", 0
        low, high = (math.log(tokens) for tokens in _USER_TOKENS)
        role = "user"
        while True:
            yield role, int(math.exp(chooser.uniform(low, high)))
            yield "assistant", chooser.randint(*_ANSWER_TOKENS)
            role = "tool" if chooser.random() < _TOOL_SHARE else "user"

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer.encode(text).ids)
