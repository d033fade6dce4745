"""The answers of a model with no cost: the next token is a function of the last one and its
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
"""A function with the signature of next_token."""

VOCABULARY = 4096


def next_token(last: Any, position: Any, vocabulary: int) -> Any:
    """Return the token at `position` following `last`: ints, or int64 arrays or tensors of one
    shape. Never 0, because 0 ends an answer."""
    return (last * 48271 + position * 69621 + 11) % (vocabulary - 1) + 1


@dataclass(frozen=True)
class Repeated:
    """A next_token function over a repeating text: a token depends on its position alone."""

    tokens: tuple[int, ...]

    @classmethod
    def read(cls, path: Path) -> "Repeated":
        """Read the text. path: a JSON list of token ids."""
        return cls(tuple(json.loads(path.read_text())))

    def __call__(self, last: Any, position: Any, vocabulary: int) -> Any:
        if isinstance(position, torch.Tensor):
            return torch.tensor(self.tokens)[position % len(self.tokens)]
        return np.array(self.tokens)[position % len(self.tokens)]


def answer_to(prompt: Sequence[int], vocabulary: int) -> Iterator[int]:
    """Yield the endless answer."""
    last, position = prompt[-1], len(prompt)
    while True:
        last = next_token(last, position, vocabulary)
        position += 1
        yield last
