"""The protocol of one program of each rank (engine/parallel/peer_collectives.py) in every
interleaving. No rank reads data too early or too late, and none waits for ever. Each guarantee used
by the kernels is left out in turn, and the check finds it.

A store is visible to its reader at once, or as late as its writer's next release. Both are tried.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest

ROUNDS = 4
HALVES = 2

Op = tuple[str, int, int]
"""An action, its peer and its round."""
Rules = Callable[[int, int, int], list[Op]]
"""The steps of a rank in a round, by rank, number of ranks and round."""


def kernel(rank: int, ranks: int, round: int) -> list[Op]:
    peers = [peer for peer in range(ranks) if peer != rank]
    stores = [("store", peer, round) for peer in peers]
    flags = [("raise", peer, round) for peer in peers]
    takes = [op for peer in peers for op in (("wait", peer, round), ("read", peer, round))]
    return [*stores, *flags, *takes]


@dataclass(frozen=True)
class State:
    """A state of all ranks. at: index of each rank's next step. flags: by (owner, writer). boxes:
    round of the stored data, by (owner, writer, half)."""

    at: tuple[int, ...]
    flags: tuple[tuple[tuple[int, int], int], ...]
    boxes: tuple[tuple[tuple[int, int, int], int], ...]
    late: frozenset[tuple[int, int, int, int]]
    """Stores under way: (owner, writer, half, round)."""


def explore(ranks: int, rules: Rules, *, halves: int = HALVES, exact: bool = False) -> str:
    """Return the first fault; empty if there is none. exact: a wait needs an equal flag."""
    lives = [
        [op for round in range(1, ROUNDS + 1) for op in rules(rank, ranks, round)]
        for rank in range(ranks)
    ]
    pairs = [(a, b) for a, b in product(range(ranks), repeat=2) if a != b]
    start = State(
        (0,) * ranks,
        tuple((pair, 0) for pair in pairs),
        tuple(((a, b, half), 0) for a, b in pairs for half in range(halves)),
        frozenset(),
    )
    waiting, known = [start], {start}
    while waiting:
        state = waiting.pop()
        flags, boxes = dict(state.flags), dict(state.boxes)
        following: list[State] = []
        for store in state.late:
            owner, writer, half, round = store
            found = boxes | {(owner, writer, half): round}
            following.append(
                State(state.at, state.flags, tuple(found.items()), state.late - {store})
            )
        for rank, life in enumerate(lives):
            if state.at[rank] == len(life):
                continue
            kind, peer, round = life[state.at[rank]]
            half = round % halves
            at = tuple(step + (number == rank) for number, step in enumerate(state.at))
            match kind:
                case "store":
                    late = state.late | {(peer, rank, half, round)}
                    following.append(State(at, state.flags, state.boxes, late))
                case "raise":
                    # A release makes this rank's earlier stores visible.
                    own = sorted(store for store in state.late if store[1] == rank)
                    arrived = {store[:3]: store[3] for store in own}
                    found = boxes | arrived
                    raised = flags | {(peer, rank): round}
                    following.append(
                        State(
                            at,
                            tuple(raised.items()),
                            tuple(found.items()),
                            state.late - frozenset(own),
                        )
                    )
                case "wait":
                    seen = flags[rank, peer]
                    if seen == round if exact else seen >= round:
                        following.append(State(at, state.flags, state.boxes, state.late))
                case "read":
                    there = boxes[rank, peer, half]
                    if there != round:
                        return f"rank {rank} reads round {there} of rank {peer} in round {round}"
                    following.append(State(at, state.flags, state.boxes, state.late))
        if not following and any(at < len(life) for at, life in zip(state.at, lives, strict=True)):
            return "all wait for ever"
        for item in following:
            if item not in known:
                known.add(item)
                waiting.append(item)
    return ""


@pytest.mark.parametrize("ranks", [2, 3])
def test_every_interleaving_is_sound(ranks: int) -> None:
    rounds = [*range(1, ROUNDS + 1)]
    assert len(rounds) > HALVES + 1, "no half would be used anew behind another round"
    assert explore(ranks, kernel) == ""


def flags_first(rank: int, ranks: int, round: int) -> list[Op]:
    ops = kernel(rank, ranks, round)
    return sorted(ops, key=lambda op: ["raise", "store", "wait", "read"].index(op[0]))


def no_wait(rank: int, ranks: int, round: int) -> list[Op]:
    return [op for op in kernel(rank, ranks, round) if op[0] != "wait"]


def read_a_round_later(rank: int, ranks: int, round: int) -> list[Op]:
    """Return the steps of a kernel that starts before the previous one has read."""
    ops = [op for op in kernel(rank, ranks, round) if op[0] != "read"]
    raised = max(place for place, op in enumerate(ops) if op[0] == "raise") + 1
    late = [("read", op[1], round - 1) for op in ops if op[0] == "wait" and round > 1]
    return [*ops[:raised], *ops[raised:], *late]


@pytest.mark.parametrize("rules", [flags_first, no_wait, read_a_round_later])
def test_what_the_kernels_rely_on_is_needed(rules: Rules) -> None:
    assert "reads round" in explore(2, rules)


def test_one_half_is_too_few() -> None:
    assert "reads round" in explore(2, kernel, halves=1)


def test_a_peer_may_be_a_round_ahead() -> None:
    assert explore(2, kernel, exact=True) == "all wait for ever"
