"""Drafts that the draft layer guessed for each lane, on the GPU: how one step hands the next its
drafts, of which the host knows only how many there are.

Owns them, a row of numbers a lane, and their counts. Thread rule: the engine loop's; one stream.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from tasuki.engine.forward_plan import PlanError


class LaneDrafts:
    def __init__(self, lanes: int, drafts: int, device: torch.device) -> None:
        """lanes: that one of rows which count for nothing included. drafts: of a lane at most."""
        self.tokens: Tensor = torch.zeros(lanes, drafts, dtype=torch.int32, device=device)
        """[lanes, drafts] int32; written by the graphs of guesses."""
        self._counts: dict[int, int] = {}

    def guessed(self, lanes: Iterable[int], counts: Iterable[int]) -> None:
        """So many are there from here on in the stream, in the place of those before."""
        self._counts.update(zip(lanes, counts, strict=True))

    def check(self, lane: int, count: int) -> None:
        """Raises PlanError where fewer are there."""
        there = self._counts.get(lane, 0)
        if count > there:
            raise PlanError(f"lane {lane} is to verify {count} drafts of its own, and has {there}")

    def drop(self, lanes: Iterable[int]) -> None:
        for lane in lanes:
            self._counts.pop(lane, None)
