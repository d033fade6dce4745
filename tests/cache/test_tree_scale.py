"""The cost of a request with thousands of children at one node, compared with hundreds in the same
run.

CPU time of the calls. The limit is between the expected time and a scan's, with a margin for a busy
machine.
"""

import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
import pytest

from tasuki.pycache._cpp_cache import CheckpointKind, PrefixCache, TreeConfig
from tests.harness.trees import Tokens, joined, text

SYSTEM = text(15 * 64, seed=5)
TEMPLATE = np.arange(2_000, 2_008, dtype=np.int32)
FEW, MANY = 250, 4_000
REPEATS = 40
# A scan would cost MANY / FEW = 16 times as much, and quadratic work 256 times.
MOST = 5

Given = TypeVar("Given")


def tree_of(policy: str, slabs: int, ghosts: int = 65_536) -> PrefixCache:
    return PrefixCache(
        TreeConfig(
            slabs=slabs,
            blocks_per_slab=8,
            pages_per_slab=3,
            max_ghost_nodes=ghosts,
            policy=policy,
            attention_cost=1e-3,
        )
    )


def question(number: int, tokens: int) -> Tokens:
    """Return a question after the system prompt and the template's first tokens, shared by all."""
    own = np.random.default_rng(number).integers(0, 1_000, tokens, dtype=np.int32)
    return joined(SYSTEM, TEMPLATE, own)


def serve(tree: PrefixCache, tokens: Tokens, cursor: int | None = None) -> None:
    allocation = tree.allocate(tokens, capacity_tokens=len(tokens), working_slots=1, cursor=cursor)
    assert allocation is not None
    tree.insert(allocation, len(tokens), allocation.working_slots[0], CheckpointKind.TURN_END)
    tree.release(allocation)


def least_us(call: Callable[[Given], object], given: list[Given]) -> float:
    """Return the lower quartile in microseconds of calls with equal cost, free of disturbances."""
    taken = []
    for each in given:
        start = time.thread_time_ns()
        call(each)
        taken.append(time.thread_time_ns() - start)
    return sorted(taken)[len(taken) // 4] / 1e3


def questions(first: int, own: int) -> list[Tokens]:
    return [question(number, own) for number in range(first, first + REPEATS)]


@pytest.mark.parametrize("policy", ["lru", "value", "auto"])
@pytest.mark.parametrize("own", [20, 120], ids=["tails", "children"])
def test_a_request_costs_no_more_beside_many_that_hang_on_its_node(policy: str, own: int) -> None:
    spent = {}
    for count in (FEW, MANY):
        tree = tree_of(policy, 3 * (MANY + 500))
        serve(tree, SYSTEM)
        for number in range(count):
            serve(tree, question(number, own))
        spent[count] = least_us(partial(serve, tree), questions(count, own))
        assert tree.stats().checkpoints >= count + REPEATS
        tree.check_integrity()
    assert spent[MANY] < MOST * spent[FEW], spent


@pytest.mark.parametrize("own", [20, 120], ids=["tails", "children"])
def test_a_match_costs_no_more_where_many_could_share_a_page_with_it(own: int) -> None:
    spent = {}
    for count in (FEW, 4 * MANY):
        tree = tree_of("lru", 3 * (4 * MANY + 500))
        serve(tree, SYSTEM)
        for number in range(count):
            serve(tree, question(number, own))
        asked = questions(count, own)
        assert all(tree.match(each).miss_reasons.alignment >= len(TEMPLATE) for each in asked)
        spent[count] = least_us(tree.match, asked)
    assert spent[4 * MANY] < MOST * spent[FEW], spent


@pytest.mark.parametrize(
    ("policy", "ghosts"), [("lru", 20), ("value", 120)], ids=["tails", "children"]
)
def test_evicting_a_tail_costs_no_more_beside_many_ghosts(policy: str, ghosts: int) -> None:
    """A full arena: each request evicts, and the oldest ghost is forgotten."""
    spent = {}
    for count in (FEW, 4 * MANY):
        tree = tree_of(policy, 120, ghosts=count)
        serve(tree, SYSTEM)
        for number in range(count + 300):
            serve(tree, question(number, ghosts))
        assert tree.stats().ghost_nodes == count
        spent[count] = least_us(partial(serve, tree), questions(count + 300, 20))
        tree.check_integrity()
    assert spent[4 * MANY] < MOST * spent[FEW], spent


def test_a_session_is_closed_at_one_cost_however_many_are_open() -> None:
    spent = {}
    for count in (FEW, 4 * MANY):
        tree = tree_of("lru", 3 * (4 * MANY + 500))
        cursors = []
        for number in range(count):
            cursors.append(tree.open_cursor())
            serve(tree, text(64, seed=number), cursors[-1])
        spent[count] = least_us(tree.close_cursor, cursors[:REPEATS])
        assert tree.stats().cursors == count - REPEATS
    assert spent[4 * MANY] < MOST * spent[FEW], spent


@pytest.mark.parametrize("seed", range(4))
def test_alignment_is_the_longest_start_that_a_page_in_the_tree_shares(seed: int) -> None:
    """It holds for any number of children and partial pages, without ghost entries, after any
    history."""
    draw = np.random.default_rng(seed)
    tree = tree_of("lru", 60, ghosts=40)
    serve(tree, SYSTEM)
    known: list[Tokens] = []
    for _ in range(300):
        length = int(draw.integers(1, 64) if draw.random() < 0.5 else 64)
        # Few different tokens at few places make long common prefixes, and partial pages that are
        # prefixes of each other.
        run = np.zeros(length, np.int32)
        run[draw.integers(0, length, 3)] = draw.integers(0, 3, 3)
        asked = joined(SYSTEM, run)
        serve(tree, asked)
        known.append(asked)
        # The stored prompts: for each exact prompt a match shows if its KV is stored.
        standing = [each for each in known if tree.match(joined(each, 9)).kv_tokens == len(each)]
        probe = np.zeros(70, np.int32)
        probe[draw.integers(0, 70, 4)] = draw.integers(0, 4, 4)
        match = tree.match(joined(SYSTEM, probe))
        if match.kv_tokens < len(SYSTEM) or match.usable_tokens >= len(SYSTEM) + 64:
            continue
        if match.kv_tokens >= len(SYSTEM) + 64:
            continue
        shared = max(
            (_common(each[len(SYSTEM) :], probe) for each in standing if len(each) > len(SYSTEM)),
            default=0,
        )
        told = match.usable_tokens + match.miss_reasons.alignment
        told += match.miss_reasons.checkpoint_evicted + match.miss_reasons.never_checkpointed
        assert told == len(SYSTEM) + shared
    tree.check_integrity()


def _common(left: Tokens, right: Tokens) -> int:
    size = min(len(left), len(right))
    differing = np.nonzero(left[:size] != right[:size])[0]
    return int(differing[0]) if len(differing) else size
