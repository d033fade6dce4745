"""A decode engine that ends offers states to prefill nodes: the most valuable ones that they lack,
few beside answers, within its limit of bytes. Afterwards nothing is held or awaited."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.handover.leaving import ALONE, BESIDE
from tests.handover.test_pulls import copy, prompt_of, reserve, sender_over
from tests.harness.decode_engine import DecodeNode
from tests.harness.engines import Lone, engine_config, submit, tiny_engine, tiny_parts
from tests.harness.interaction import Script, play, scripts
from tests.harness.routing_script import routing

_HIT = m.HitBreakdown(155, 154, 154, {"new": 1}, None)


@scripts(__file__)
def test_script(script: Script) -> None:
    """A state is offered to the right prefill node, and each end of its transfer is handled."""
    play(script, routing)


QUERY = 9
HELD = 154
"""Tokens of a log of answered()."""
REPORT = m.PullReport(HELD, 1000, 0.1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DecodeNode]:
    """Yield a decode engine and assert it at rest after the test."""
    node = DecodeNode(tmp_path, max_batch=2)
    yield node
    node.assert_at_rest()


def answered(node: DecodeNode, seed: int, **changes: object) -> list[int]:
    """Return the log of a turn answered here; all but its last token is cached."""
    node.post(m.PeersChanged(False))
    log = [*prompt_of(150, seed), *node.ask(f"turn{seed}", prompt_of(150, seed), 5, **changes)]
    node.post(m.PeersChanged(True))
    return log


def leave(node: DecodeNode) -> None:
    node.post(m.Drain(QUERY))
    node.post(m.LeaveToDrainTargets(QUERY))
    node.step()


def offered(node: DecodeNode) -> list[m.HandoverWanted]:
    return [
        wanted for wanted in node.all_said(m.HandoverWanted) if wanted.purpose is m.Purpose.INHERIT
    ]


def logs_of(wanted: Sequence[m.HandoverWanted]) -> list[list[int]]:
    return [each.prompt[:-1].tolist() for each in wanted]


def take(node: DecodeNode, wanted: m.HandoverWanted) -> None:
    """Do all steps of a correct drain target that holds nothing of the state."""
    transfer_id = wanted.transfer_request.transfer_id
    node.post(m.PullAsked(transfer_id, wanted.transfer_request.offered, 0))
    node.step()
    assert node.all_said(m.PullPinned)[-1].source.transfer_id == transfer_id
    node.post(m.PullEnd(transfer_id))
    node.post(m.GrantWanted(transfer_id))
    (grant,) = [
        said.grant
        for said in node.all_said(m.HandoverGranted)
        if said.grant.transfer_id == transfer_id
    ]
    assert (grant.pages, grant.slot) == ((), None)
    node.post(m.RemoteReady(transfer_id, 7, -0.5, 1.0, _HIT, "heir", REPORT))
    node.post(m.RemoteDone(transfer_id, m.TransferReport(0, 0, 0, 0.0, 0.0)))
    node.step()


def report(node: DecodeNode) -> m.LeftToDrainTargets:
    (left,) = node.all_said(m.LeftToDrainTargets)
    assert left.query_id == QUERY
    return left


def outcomes(node: DecodeNode) -> list[m.DrainTargetOutcome]:
    return [left.outcome for left in node.all_said(m.StateLeft)]


def test_a_turn_end_is_offered_and_taken(node: DecodeNode) -> None:
    log = answered(node, 1)
    leave(node)
    (wanted,) = offered(node)
    assert logs_of([wanted]) == [log[:-1]]
    assert (
        wanted.transfer_request.offered == HELD
        and wanted.transfer_request.sampling.max_new_tokens == 1
    )
    assert not node.all_said(m.LeftToDrainTargets)
    take(node, wanted)
    assert report(node) == m.LeftToDrainTargets(
        QUERY, {m.DrainTargetOutcome.TAKEN: 1}, REPORT.tokens, REPORT.bytes, 0
    )
    assert node.all_said(m.StateLeft) == [
        m.StateLeft(m.DrainTargetOutcome.TAKEN, HELD, REPORT.bytes, "heir")
    ]
    assert node.all_said(m.Drained) and not node.all_said(m.Rejected)


def test_where_sessions_wait_comes_first(node: DecodeNode) -> None:
    """Among states of equal value, those of sessions come first, then the youngest."""
    node.post(m.OpenCursor(1))
    (opened,) = node.all_said(m.CursorOpened)
    session = answered(node, 1, cursor=opened.cursor)
    old, young = answered(node, 2), answered(node, 3)
    leave(node)
    assert logs_of(offered(node)) == [log[:-1] for log in (session, young, old)]


def test_few_go_beside_answers_and_what_those_leave_goes_too(node: DecodeNode) -> None:
    logs = [answered(node, seed) for seed in range(1, 7)]
    node.post(m.PeersChanged(False))
    node.post(submit("long", prompt_of(150, 50), 30))
    node.steps(3)
    node.post(m.PeersChanged(True))
    leave(node)
    assert len(offered(node)) == BESIDE < len(logs)
    node.run()
    log = [*prompt_of(150, 50), *node.tokens("long")]
    assert len(offered(node)) == len(logs) + 1 <= ALONE
    assert log[:-1] in logs_of(offered(node))
    assert not node.all_said(m.LeftToDrainTargets)
    for wanted in offered(node):
        take(node, wanted)
    assert report(node).states == {m.DrainTargetOutcome.TAKEN: len(logs) + 1}


def test_no_more_rooms_live_than_may(node: DecodeNode) -> None:
    for seed in range(1, ALONE + 4):
        answered(node, seed)
    leave(node)
    assert len(offered(node)) == ALONE
    for done in range(ALONE + 3):
        take(node, offered(node)[done])
        assert len(offered(node)) == min(ALONE + 3, ALONE + done + 1)
    assert len(set(map(tuple, logs_of(offered(node))))) == ALONE + 3
    assert report(node).untried == 0


def test_what_a_prefill_node_holds_is_passed_over(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    (wanted,) = offered(node)
    node.post(m.AlreadyHeld(wanted.transfer_request.transfer_id))
    node.post(m.AlreadyHeld(wanted.transfer_request.transfer_id))
    node.step()
    assert report(node).states == {m.DrainTargetOutcome.HELD: 1}
    assert not node.all_said(m.HandoverCancelled)


def test_an_heir_that_does_not_pull_computes_nothing(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    (wanted,) = offered(node)
    node.post(m.GrantWanted(wanted.transfer_request.transfer_id))
    node.step()
    assert node.all_said(m.HandoverCancelled) == [
        m.HandoverCancelled(wanted.transfer_request.transfer_id)
    ]
    assert not node.all_said(m.HandoverGranted)
    assert report(node).states == {m.DrainTargetOutcome.DECLINED: 1}


def test_what_is_evicted_meanwhile_is_not_computed_by_its_heir(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    (wanted,) = offered(node)
    transfer_id = wanted.transfer_request.transfer_id
    node.post(m.FlushCache(0))
    node.post(m.PullAsked(transfer_id, HELD, 0))
    assert [refused.transfer_id for refused in node.all_said(m.PullRefused)] == [transfer_id]
    node.post(m.PullEnd(transfer_id))
    node.post(m.GrantWanted(transfer_id))
    node.step()
    assert not node.all_said(m.HandoverGranted)
    assert report(node).states == {m.DrainTargetOutcome.LOST: 1}


def test_no_more_bytes_are_pulled_than_may(tmp_path: Path) -> None:
    """The limit is a quarter of the arena. States beyond it are not offered."""
    node = DecodeNode(tmp_path, slabs=24, max_batch=2)
    logs = [answered(node, seed) for seed in range(1, 4)]
    leave(node)
    layout = node.parts.arena.layout
    each = 3 * len(layout.regions) * layout.block_bytes + layout.slot_bytes
    fits = 24 * layout.slab_bytes // 4 // each
    transfers = [wanted.transfer_request.transfer_id for wanted in offered(node)]
    assert 0 < fits < len(transfers) < len(logs)
    for transfer_id in transfers:
        node.post(m.PullAsked(transfer_id, HELD, 0))
    node.step()
    assert [pinned.source.transfer_id for pinned in node.all_said(m.PullPinned)] == transfers[:fits]
    assert [refused.transfer_id for refused in node.all_said(m.PullRefused)] == transfers[fits:]
    for transfer_id in transfers:
        node.post(m.PullEnd(transfer_id))
        node.post(m.GrantWanted(transfer_id))
    for transfer_id in transfers[:fits]:
        node.post(m.RemoteReady(transfer_id, 7, -0.5, 1.0, _HIT, "heir", REPORT))
    node.step()
    assert len(offered(node)) == len(transfers)
    assert report(node).states == {
        m.DrainTargetOutcome.TAKEN: fits,
        m.DrainTargetOutcome.TOO_MUCH: len(logs) - fits,
    }
    node.assert_at_rest()


def test_no_more_is_asked_for_at_once_than_one_heir_would_pull(tmp_path: Path) -> None:
    """The limit is a quarter of a node's capacity; a larger state is offered alone."""
    node = DecodeNode(tmp_path, slabs=40, max_batch=2)
    quarter = node.engine.max_request_tokens // 4
    logs = [answered(node, seed) for seed in range(1, 5)]
    at_once = max(1, quarter // (HELD + 1))
    assert at_once < len(logs)
    leave(node)
    for done in range(len(logs)):
        assert len(offered(node)) == min(len(logs), at_once + done)
        node.post(m.AlreadyHeld(offered(node)[done].transfer_request.transfer_id))
        node.step()
    assert report(node).states == {m.DrainTargetOutcome.HELD: len(logs)}
    node.assert_at_rest()


def test_where_all_heirs_are_lost_nobody_is_waited_for(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    node.post(
        m.HandoverFailed(offered(node)[0].transfer_request.transfer_id, "cut", elsewhere=True)
    )
    node.post(m.PeersChanged(False))
    node.step()
    assert report(node).states == {m.DrainTargetOutcome.CUT: 1}


@pytest.mark.parametrize("pulled", [False, True])
def test_a_lost_heir_leaves_it_to_another_one(node: DecodeNode, pulled: bool) -> None:
    log = answered(node, 1)
    leave(node)
    first = offered(node)[0].transfer_request.transfer_id
    if pulled:
        node.post(m.PullAsked(first, HELD, 0))
    node.post(m.HandoverFailed(first, "cut", elsewhere=True))
    node.post(m.PullEnd(first))
    node.step()
    assert logs_of(offered(node)) == [log[:-1]] * 2
    take(node, offered(node)[1])
    assert report(node).states == {m.DrainTargetOutcome.TAKEN: 1}


def test_without_another_heir_it_is_lost_and_the_next_state_goes_on(node: DecodeNode) -> None:
    answered(node, 1)
    answered(node, 2)
    leave(node)
    one, other = offered(node)
    node.post(m.HandoverFailed(one.transfer_request.transfer_id, "cut"))
    take(node, other)
    assert report(node).states == {m.DrainTargetOutcome.LOST: 1, m.DrainTargetOutcome.TAKEN: 1}
    assert not node.all_said(m.Rejected) and not node.all_said(m.Finished)[2:]


def test_what_is_gone_by_then_is_asked_of_no_other_heir(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    node.post(m.FlushCache(0))
    node.post(
        m.HandoverFailed(offered(node)[0].transfer_request.transfer_id, "cut", elsewhere=True)
    )
    node.step()
    assert len(offered(node)) == 1 and report(node).states == {m.DrainTargetOutcome.LOST: 1}


def test_a_pull_that_an_heir_lost_is_not_counted_as_taken(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    transfer_id = offered(node)[0].transfer_request.transfer_id
    node.post(m.PullAsked(transfer_id, HELD, 0))
    node.post(m.PullEnd(transfer_id))
    node.post(m.GrantWanted(transfer_id))
    node.post(m.RemoteReady(transfer_id, 7, -0.5, 1.0, _HIT, "heir"))
    node.step()
    assert (report(node).states, report(node).bytes) == ({m.DrainTargetOutcome.LOST: 1}, 0)


def test_the_end_of_the_time_cuts_what_is_under_way_and_keeps_what_is_read(
    node: DecodeNode,
) -> None:
    """Later messages of these transfers are dropped."""
    for seed in range(1, ALONE + 4):
        answered(node, seed)
    leave(node)
    transfers = [wanted.transfer_request.transfer_id for wanted in offered(node)]
    node.post(m.PullAsked(transfers[0], HELD, 0))
    node.step()
    node.post(m.PullAsked(transfers[1], HELD, 0))
    node.post(m.PullEnd(transfers[1]))
    node.post(m.GrantWanted(transfers[1]))
    node.post(m.EndLeaving())
    node.post(m.EndLeaving())
    assert node.all_said(m.HandoverCancelled) == [
        m.HandoverCancelled(transfer_id) for transfer_id in transfers
    ]
    assert report(node).states == {m.DrainTargetOutcome.CUT: ALONE} and report(node).untried == 3
    for transfer_id in transfers:
        for late in (
            m.PullAsked(transfer_id, HELD, 0),
            m.GrantWanted(transfer_id),
            m.AlreadyHeld(transfer_id),
            m.RemoteReady(transfer_id, 7, -0.5, 1.0, _HIT, "heir", REPORT),
            m.HandoverFailed(transfer_id, "cut", elsewhere=True),
            m.RemoteDone(transfer_id, m.TransferReport(0, 0, 0, 0.0, 0.0)),
            m.WriterFenced(transfer_id),
        ):
            node.post(late)
    node.run()
    assert len(offered(node)) == len(transfers)
    pinned = node.stats()
    assert pinned.slots["pinned"] == 1, "it is read until its sender has drained"
    node.post(m.PullEnd(transfers[0]))


def test_who_asks_after_the_end_is_answered_at_once(node: DecodeNode) -> None:
    answered(node, 1)
    leave(node)
    node.post(m.EndLeaving())
    node.post(m.LeaveToDrainTargets(QUERY + 1))
    node.step()
    first, second = node.all_said(m.LeftToDrainTargets)
    assert (first.query_id, second.query_id) == (QUERY, QUERY + 1)
    assert first.states == second.states == {m.DrainTargetOutcome.CUT: 1}
    assert len(offered(node)) == 1


def test_a_node_without_prefill_nodes_leaves_nothing(node: DecodeNode, tmp_path: Path) -> None:
    answered(node, 1)
    node.post(m.PeersChanged(False))
    leave(node)
    assert not offered(node) and report(node).untried == 1
    node.assert_at_rest()
    parts = tiny_parts()
    prefill = Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))
    for engine in (tiny_engine(), prefill):
        engine.post(m.EndLeaving())
        engine.post(m.LeaveToDrainTargets(QUERY))
        assert engine.all_said(m.LeftToDrainTargets) == [m.LeftToDrainTargets(QUERY)]


def test_an_heir_answers_the_next_turn_from_it(node: DecodeNode, tmp_path: Path) -> None:
    """Two conversations under two salts are each found to the token, and under no other salt."""
    parts = tiny_parts()
    prefill = Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))
    logs = {salt: answered(node, seed, salt=salt) for seed, salt in ((1, b"a"), (2, b"b"))}
    leave(node)
    for wanted in offered(node):
        prefill.post(m.PrefillReserve(wanted.transfer_request, wanted.prompt))
        prefill.run()
        grant = prefill.all_said(m.PullWanted)[-1].grant
        node.post(m.PullAsked(grant.transfer_id, grant.tokens, grant.first_page))
        node.step()
        source = node.all_said(m.PullPinned)[-1].source
        copy(node, source.pages, source.slot, prefill, grant)
        prefill.post(m.PullCommitted(grant.transfer_id, REPORT))
        prefill.run()
        node.post(m.PullEnd(grant.transfer_id))
        node.post(m.GrantWanted(grant.transfer_id))
        bare = node.all_said(m.HandoverGranted)[-1].grant
        prefill.post(m.PrefillEnd(bare.transfer_id))
        node.post(m.RemoteReady(bare.transfer_id, 7, -0.5, 1.0, _HIT, "heir", REPORT))
    node.step()
    assert report(node).states == {m.DrainTargetOutcome.TAKEN: 2}
    for number, (salt, log) in enumerate(logs.items()):
        turn = np.array([*log, *prompt_of(90, 2)], dtype=np.int32)
        for asked_salt, found in ((salt, len(log) - 1), (b"other", 0)):
            usable = prefill.stats().tree["usable_tokens"]
            transfer_id = m.TransferId(77 + 2 * number + (asked_salt == salt))
            asked = reserve(turn, 0, transfer_id)
            prefill.post(m.PrefillReserve(replace(asked.transfer_request, salt=asked_salt), turn))
            prefill.run()
            assert prefill.stats().tree["usable_tokens"] - usable == found
            prefill.post(m.PrefillEnd(transfer_id))
    prefill.assert_at_rest()
