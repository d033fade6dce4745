"""What a model answers that costs nothing: the next token is a function of the last one and of
where it stands.

So its answers are the same on any node, in any batch and however a prompt was cut, and a client
notices a wrong token. Pure.
"""

from collections.abc import Iterator, Sequence
from typing import Any

VOCABULARY = 4096


def next_token(last: Any, position: Any, vocabulary: int) -> Any:
    """The token that stands at `position`, behind `last`: ints, or int64 arrays or tensors of one
    shape. Never 0, which ends an answer."""
    return (last * 48271 + position * 69621 + 11) % (vocabulary - 1) + 1


def answer_to(prompt: Sequence[int], vocabulary: int) -> Iterator[int]:
    """The answer, without an end."""
    last, position = prompt[-1], len(prompt)
    while True:
        last = next_token(last, position, vocabulary)
        position += 1
        yield last
