"""The choice of a decode node for a session, among the few whose loads were asked for.

Pure: equal loads give equal choices. What makes a node worse, first things first: that it takes
nothing new, that one answer more would wait or finds little memory, that a step takes clearly
longer. Between those that are left, the one with the fewest answers for its size, then the one that
the caller has placed least on: loads that were asked for at the same moment are equal all day.
"""

from collections.abc import Mapping
from dataclasses import dataclass

LEAST_FREE_KV = 0.125
"""Of a node's pages: below that, an answer that begins soon takes another's room."""
NEAR = 1.25
"""Steps that differ by less are equal: they vary as much from second to second."""
CLEARLY_SHORTER = 0.8
"""A session moves for steps of so many times its own, and not for less, so that none goes to and
fro."""


@dataclass(frozen=True, slots=True)
class DecodeLoad:
    """As SessionLoadResponse says. placed: sessions that the caller has there."""

    step_seconds: float | None
    busy: float
    free_kv: float
    draining: bool
    placed: int = 0

    @property
    def pace(self) -> float | None:
        """Seconds between an answer's tokens, where answers take turns once there are too many."""
        return None if self.step_seconds is None else self.step_seconds * max(1.0, self.busy)

    @property
    def has_room(self) -> bool:
        return self.busy < 1 and self.free_kv >= LEAST_FREE_KV


def choose_decode_node(loads: Mapping[str, DecodeLoad]) -> str:
    """By node. REQUIRES: there is one."""
    left = {node: load for node, load in loads.items() if not load.draining} or dict(loads)
    left = {node: load for node, load in left.items() if load.has_room} or left
    shortest = min(load.pace or 0.0 for load in left.values())
    near = {node: load for node, load in left.items() if (load.pace or 0.0) <= NEAR * shortest}
    return min(near, key=lambda node: (near[node].busy, near[node].placed))


def is_worth_a_move(here: DecodeLoad, there: DecodeLoad, target: float) -> bool:
    """Whether a session whose tokens came later than `target` seconds after each other has reason
    to hope for better."""
    if there.draining or not there.has_room:
        return False
    if here.pace is None or there.pace is None:
        return there.busy < CLEARLY_SHORTER * here.busy
    return there.pace <= min(target, CLEARLY_SHORTER * here.pace)
