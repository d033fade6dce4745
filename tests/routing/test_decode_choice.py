"""Tests of the decode node chosen for a session, and of reasons to leave a node."""

import pytest

from tasuki.routing.node_choice import DecodeLoad, choose_decode_node, is_worth_a_move


def load(
    step: float | None = 0.02,
    busy: float = 0.25,
    free_kv: float = 0.5,
    draining: bool = False,
    placed: int = 0,
) -> DecodeLoad:
    return DecodeLoad(step, busy, free_kv, draining, placed)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (load(busy=2.0, free_kv=0.0), load(draining=True, busy=0.0)),
        (load(step=0.2, busy=0.9), load(busy=1.0)),
        (load(step=0.2), load(free_kv=0.06)),
        (load(step=0.02, busy=0.9), load(step=0.03, busy=0.0)),
        (load(step=0.024, busy=0.25), load(step=0.02, busy=0.5)),
        (load(step=None, busy=0.0), load(step=0.02, busy=0.0)),
        (load(placed=1), load(placed=2)),
        # If answers take turns, a token waits for the others' steps, too.
        (load(step=0.03, busy=1.0), load(step=0.02, busy=2.0)),
    ],
    ids=["draining", "full", "memory", "step", "near", "unknown", "placed", "turns"],
)
def test_the_better_of_two(better: DecodeLoad, worse: DecodeLoad) -> None:
    assert choose_decode_node({"a": worse, "b": better}) == "b"
    assert choose_decode_node({"b": better, "a": worse}) == "b"


def test_one_is_chosen_whatever_it_says() -> None:
    assert choose_decode_node({"a": load(draining=True, busy=3.0, free_kv=0.0)}) == "a"


@pytest.mark.parametrize(
    ("here", "there", "moves"),
    [
        (load(step=0.05), load(step=0.02), True),
        (load(step=0.05), load(step=0.04), True),
        (load(step=0.05), load(step=0.045), False),
        (load(step=0.2), load(step=0.1), False),
        (load(step=0.05), load(step=0.02, draining=True), False),
        (load(step=0.05), load(step=0.02, busy=1.0), False),
        (load(step=0.05), load(step=0.02, free_kv=0.0), False),
        (load(step=0.01, busy=4.0), load(step=0.02), True),
        (load(step=None, busy=2.0), load(step=0.02, busy=0.5), True),
        (load(step=0.05, busy=0.25), load(step=None, busy=0.25), False),
    ],
    ids=[
        "well",
        "just",
        "little",
        "late too",
        "draining",
        "full",
        "memory",
        "turns",
        "new",
        "as full",
    ],
)
def test_a_move_is_for_clearly_better(here: DecodeLoad, there: DecodeLoad, moves: bool) -> None:
    assert is_worth_a_move(here, there, target=0.04) is moves
    assert not (moves and is_worth_a_move(there, here, target=0.04)), "and not back again"
