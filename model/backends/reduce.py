"""Where the ranks that share a model exchange what each of them computed: they add up at the end of
`project` and of `feed_forward`, twice a layer, and put their parts of the logits side by side.
Everything else of a layer a rank computes alone, on its own heads and its own part of every inner
width."""

from typing import Protocol

from torch import Tensor


class Reduce(Protocol):
    def __call__(self, partial: Tensor) -> Tensor:
        """The sum of all ranks' partial [T, hidden], added in rank order, so that every rank has
        the same bits; may overwrite partial. Every rank calls it in the same order, on the thread
        of its forward, also while a CUDA graph is captured: there it may not wait on the host."""


class Gather(Protocol):
    def __call__(self, partial: Tensor) -> Tensor:
        """All ranks' parts [T, columns of one], side by side in rank order: [T, columns], the same
        bits on every rank. Called as Reduce is."""


def one_rank(partial: Tensor) -> Tensor:
    """Of a rank that has the whole model: its part is all."""
    return partial
