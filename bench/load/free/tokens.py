"""The answers of a cost-free model: the next token is a function of the last token and its
position.

So its answers are the same on any node, in any batch, and for any chunking of a prompt. A client
can therefore detect a wrong token. Pure.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

NextToken = Callable[[Any, Any, int], Any]
"""The type of a function with the signature of next_token()."""

VOCABULARY = 4096


def next_token(last: Any, position: Any, vocabulary: int) -> Any:
    """Return the token at `position` after the token `last`. Both are ints, or int64 arrays or
    tensors of one shape. The result is never 0, because 0 ends an answer."""
    return (last * 48271 + position * 69621 + 11) % (vocabulary - 1) + 1


@dataclass(frozen=True)
class Repeated:
    """A next_token function repeating a text without end: a token depends on its position alone."""

    tokens: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> "Repeated":
        """Read the repeated text. path: file with a JSON list of token ids."""
        return cls(tuple(json.loads(path.read_text())))

    def __call__(self, last: Any, position: Any, vocabulary: int) -> Any:
        if isinstance(position, torch.Tensor):
            return torch.tensor(self.tokens)[position % len(self.tokens)]
        return np.array(self.tokens)[position % len(self.tokens)]


def answer_to(prompt: Sequence[int], vocabulary: int) -> Iterator[int]:
    """Yield the tokens of the prompt's answer by next_token(), without end."""
    last, position = prompt[-1], len(prompt)
    while True:
        last = next_token(last, position, vocabulary)
        position += 1
        yield last
