"""A prefill engine that ends gives states to decode nodes on request: the most valuable first, each
once, within its limit of bytes. A conversation's states go to the node that continues it. It
reports the end when no state is left or the time is over."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.handover.leaving import ALONE, BESIDE, MOST, SoleReceivers
from tasuki.model.ops.sampling.params import SamplingParams
from tests.handover.test_pulls import give, prompt_of, said, sender_over
from tests.harness.engines import Lone, engine_config, tiny_parts

QUERY = 9
HELD = 128
"""Tokens before the kept state of a prompt of 150."""
D, E = "decode-d", "decode-e"


@pytest.fixture
def prefill(tmp_path: Path) -> Iterator[Lone]:
    """Yield a prefill engine and assert it at rest after the test."""
    yield (node := made(tmp_path))
    node.assert_at_rest()


def made(tmp_path: Path, slabs: int | None = None) -> Lone:
    parts = tiny_parts(slabs=slabs)
    return Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))


def computed(
    prefill: Lone, seed: int, peer: str, new_tokens: int = 4, beginning: tuple[int, ...] = ()
) -> list[int]:
    """Hand a prompt of 150 tokens over. Return its prefix up to the kept state."""
    tokens = np.array([*beginning, *prompt_of(150 - len(beginning), seed)], dtype=np.int32)
    transfer_id = m.TransferId(1000 + seed)
    transfer_request = m.TransferRequest(
        transfer_id, 1, 0, SamplingParams(max_new_tokens=new_tokens), b"salt"
    )
    give(prefill, m.PrefillReserve(transfer_request, tokens, peer))
    give(prefill, m.PrefillStart(m.Grant(transfer_id, 1, 0, (0, 1, 2), 0)))
    give(prefill, m.PrefillEnd(transfer_id))
    return tokens[:HELD].tolist()


def leave(prefill: Lone) -> None:
    give(prefill, m.Drain(QUERY), m.LeaveToDrainTargets(QUERY))


def asked(prefill: Lone, peer: str, *others: str) -> m.LeftState:
    query = len(said(prefill, m.LeftState)) + 1
    give(prefill, m.LeftWanted(query, peer, frozenset((peer, *others))))
    answer = said(prefill, m.LeftState)[-1]
    assert answer.query_id == query
    return answer


def given(prefill: Lone, peer: str, *others: str) -> m.GivenState:
    state = asked(prefill, peer, *others).state
    assert state is not None
    return state


def take(prefill: Lone, state: m.GivenState, size: int = 1000) -> None:
    give(prefill, m.LeftTakenOver(state.number, m.DrainTargetOutcome.TAKEN, size, "heir"))


def report(prefill: Lone) -> m.LeftToDrainTargets:
    (left,) = said(prefill, m.LeftToDrainTargets)
    return left


def test_what_was_asked_for_is_given_once_and_counted(prefill: Lone) -> None:
    beginning = computed(prefill, 1, D)
    assert asked(prefill, D).state is None, "nothing before its end"
    leave(prefill)
    assert said(prefill, m.LeavingBegun) == [m.LeavingBegun()]
    state = given(prefill, D)
    assert (state.prompt.tolist(), state.salt, state.known) == (beginning, b"salt", True)
    none = asked(prefill, E, D)
    assert none.state is None and not none.over
    assert not said(prefill, m.LeftToDrainTargets), "its decode node has not said what became of it"
    take(prefill, state)
    take(prefill, state)
    assert report(prefill) == m.LeftToDrainTargets(
        QUERY, {m.DrainTargetOutcome.TAKEN: 1}, HELD, 1000, 0
    )
    assert said(prefill, m.StateLeft) == [
        m.StateLeft(m.DrainTargetOutcome.TAKEN, HELD, 1000, "heir")
    ]
    assert asked(prefill, D).over


def test_a_conversation_goes_to_who_has_it_while_that_one_asks(prefill: Lone) -> None:
    """Without a request from its own node, a conversation goes to any node: its own is gone or
    cannot ask."""
    beginning = computed(prefill, 1, D)
    leave(prefill)
    assert asked(prefill, E, D).state is None
    assert given(prefill, D, E).prompt.tolist() == beginning
    computed_by_other = asked(prefill, E, D)
    assert computed_by_other.state is None and not computed_by_other.over


def test_who_is_gone_keeps_nothing_from_others(prefill: Lone) -> None:
    beginning = computed(prefill, 1, D)
    leave(prefill)
    assert asked(prefill, E, D).state is None
    state = given(prefill, E)
    assert state.prompt.tolist() == beginning and not state.known


def test_a_beginning_that_several_share_is_for_anyone(prefill: Lone) -> None:
    """States after the shared prefix are kept for their own node."""
    shared = prompt_of(64, 5).tolist()
    for seed in (1, 2, 3):
        computed(prefill, seed, D, beginning=tuple(shared))
    leave(prefill)
    state = given(prefill, E, D)
    assert state.prompt.tolist() == shared and not state.known
    assert {given(prefill, D, E).known for _ in range(3)} == {True}


def test_so_is_one_at_which_two_prompts_end(prefill: Lone) -> None:
    """Both prompts are so little longer that their states are the same one."""
    shared = tuple(prompt_of(HELD, 5).tolist())
    for seed in (1, 2):
        assert computed(prefill, seed, D, beginning=shared) == list(shared)
    leave(prefill)
    state = given(prefill, E, D)
    assert state.prompt.tolist() == list(shared) and not state.known
    assert asked(prefill, D, E).state is None


def test_what_leaves_by_one_token_has_no_receiver_that_goes_on(prefill: Lone) -> None:
    computed(prefill, 1, D, new_tokens=1)
    leave(prefill)
    assert not given(prefill, E, D).known


def test_no_more_are_given_at_once_than_may_and_fewer_beside_prompts(prefill: Lone) -> None:
    for seed in range(1, ALONE + 4):
        computed(prefill, seed, D)
    transfer_request = m.TransferRequest(
        m.TransferId(5), 1, 0, SamplingParams(max_new_tokens=4), b"salt"
    )
    give(prefill, m.PrefillReserve(transfer_request, prompt_of(150, 99), D))
    leave(prefill)
    states = [given(prefill, D) for _ in range(BESIDE)]
    assert asked(prefill, D).state is None
    give(prefill, m.PrefillEnd(m.TransferId(5)))
    states += [given(prefill, D) for _ in range(ALONE - BESIDE)]
    assert asked(prefill, D).state is None
    for _ in range(3):
        give(prefill, m.LeftTakenOver(states.pop(0).number, m.DrainTargetOutcome.HELD))
        states.append(given(prefill, D))
    assert len({state.number for state in states}) == len(states) == ALONE
    for state in states:
        give(prefill, m.LeftTakenOver(state.number, m.DrainTargetOutcome.DECLINED))
    assert report(prefill).states == {
        m.DrainTargetOutcome.HELD: 3,
        m.DrainTargetOutcome.DECLINED: ALONE,
    }


def test_what_a_prompt_in_flight_leaves_is_given_too(prefill: Lone) -> None:
    computed(prefill, 1, D)
    late = prompt_of(150, 2)
    transfer_request = m.TransferRequest(
        m.TransferId(5), 1, 0, SamplingParams(max_new_tokens=4), b"salt"
    )
    give(prefill, m.PrefillReserve(transfer_request, late, D))
    leave(prefill)
    give(prefill, m.LeftTakenOver(given(prefill, D).number, m.DrainTargetOutcome.HELD))
    assert not said(prefill, m.LeftToDrainTargets)
    give(prefill, m.PrefillStart(m.Grant(m.TransferId(5), 1, 0, (0, 1, 2), 0)))
    give(prefill, m.PrefillEnd(m.TransferId(5)))
    assert given(prefill, D).prompt.tolist() == late[:HELD].tolist()


def test_no_more_bytes_are_left_than_may(tmp_path: Path) -> None:
    """The limit is a quarter of the arena. A given state counts in full until the pulled part is
    known."""
    prefill = made(tmp_path, slabs=24)
    layout = prefill.parts.arena.layout
    each = 2 * len(layout.regions) * layout.block_bytes + layout.slot_bytes
    fits = 24 * layout.slab_bytes // 4 // each
    assert fits >= 2
    for seed in range(fits + 2):
        computed(prefill, seed + 1, D)
    leave(prefill)
    states = [given(prefill, D) for _ in range(fits)]
    assert asked(prefill, D).state is None
    give(prefill, m.LeftTakenOver(states[0].number, m.DrainTargetOutcome.HELD))
    states[0] = given(prefill, D)
    for state in states:
        take(prefill, state, each)
    assert asked(prefill, D).over
    assert report(prefill).states == {
        m.DrainTargetOutcome.HELD: 1,
        m.DrainTargetOutcome.TAKEN: fits,
        m.DrainTargetOutcome.TOO_MUCH: 1,
    }
    prefill.assert_at_rest()


def test_a_decode_node_that_lies_about_bytes_buys_nobody_any(tmp_path: Path) -> None:
    prefill = made(tmp_path, slabs=24)
    computed(prefill, 1, D)
    leave(prefill)
    take(prefill, given(prefill, D), 1 << 50)
    assert report(prefill).bytes < 24 * prefill.parts.arena.layout.slab_bytes


def test_what_is_evicted_meanwhile_is_given_to_nobody(prefill: Lone) -> None:
    computed(prefill, 1, D)
    leave(prefill)
    assert asked(prefill, E, D).state is None
    give(prefill, m.FlushCache(0))
    answer = asked(prefill, D, E)
    assert answer.state is None and answer.over
    assert report(prefill).states == {}


def test_the_end_of_the_time_cuts_what_is_under_way(prefill: Lone) -> None:
    for seed in (1, 2, 3):
        computed(prefill, seed, D)
    leave(prefill)
    state = given(prefill, D)
    give(prefill, m.EndLeaving(), m.EndLeaving())
    assert (report(prefill).states, report(prefill).untried) == ({m.DrainTargetOutcome.CUT: 1}, 2)
    take(prefill, state)
    assert asked(prefill, D).over and len(said(prefill, m.StateLeft)) == 1


def test_without_anything_to_leave_nothing_begins(prefill: Lone) -> None:
    leave(prefill)
    assert report(prefill) == m.LeftToDrainTargets(QUERY) and not said(prefill, m.LeavingBegun)
    give(prefill, m.LeaveToDrainTargets(QUERY + 1))
    assert said(prefill, m.LeftToDrainTargets)[-1] == m.LeftToDrainTargets(QUERY + 1)


def test_a_beginning_of_two_prompts_is_nobodys_and_the_oldest_names_go() -> None:
    receivers = SoleReceivers()
    beginning, other = np.arange(64, dtype=np.int32), np.arange(1, 65, dtype=np.int32)
    receivers.note(b"b", other, D)
    receivers.note(b"b", other, D)
    assert receivers.of(b"b", other) is None
    receivers.note(b"a", beginning, D)
    assert receivers.of(b"a", beginning) == D
    assert receivers.of(b"b", beginning) is None and receivers.of(b"a", other) is None
    for number in range(MOST):
        receivers.note(number.to_bytes(4, "little"), other, D)
    assert receivers.of(b"a", beginning) is None
