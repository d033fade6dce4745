"""A decode engine hands back the state of a session that leaves it. It hands back all it holds,
once, also while other requests wait. Afterwards nothing is held or awaited."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.handover.decode_side import AT_A_TIME, MOST_WAITING
from tests.handover.test_pulls import REPORT, copy, prompt_of, reserve, sender_over
from tests.harness.decode_engine import DecodeNode
from tests.harness.engines import Lone, engine_config, submit, tiny_parts

_HIT = m.HitBreakdown(155, 154, 154, {"new": 1}, None)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DecodeNode]:
    """Yield a decode engine and assert it at rest after the test."""
    node = DecodeNode(tmp_path, max_batch=2)
    yield node
    node.assert_at_rest()


def answered(node: Lone, name: str = "turn", seed: int = 1) -> list[int]:
    """Return the log of a turn answered here; all but its last token is cached."""
    node.post(m.PeersChanged(False))
    log = [*prompt_of(150, seed), *node.ask(name, prompt_of(150, seed), 5)]
    node.post(m.PeersChanged(True))
    return log


def back(name: str, log: Sequence[int]) -> m.Submit:
    return submit(name, log, 1, purpose=m.Purpose.HAND_BACK)


def ready(transfer_id: m.TransferId) -> m.RemoteReady:
    return m.RemoteReady(transfer_id, 7, -0.5, 1.0, _HIT, "prefill", REPORT)


def test_what_is_held_is_offered_and_no_answer_comes(node: DecodeNode) -> None:
    log = answered(node)
    node.post(back("back", [*log, *prompt_of(90, 2)]))
    (wanted,) = node.all_said(m.HandoverWanted)
    assert wanted.prompt.tolist() == log
    assert wanted.transfer_request.offered == len(log) - 1 == 154
    transfer_id = wanted.transfer_request.transfer_id
    node.post(m.GrantWanted(transfer_id))
    (granted,) = node.all_said(m.HandoverGranted)
    assert (granted.grant.pages, granted.grant.slot) == ((), None)
    node.post(ready(transfer_id))
    finished = node.finished("back")
    assert node.tokens("back") == [] and finished.usage.completion_tokens == 0
    assert finished.usage.pulled == REPORT
    node.post(m.RemoteDone(transfer_id, m.TransferReport(0, 0, 0, 0.0, 0.0)))


def test_a_node_that_drains_hands_back_and_then_is_at_rest(node: DecodeNode) -> None:
    log = answered(node)
    node.post(m.Drain(3))
    node.post(submit("new", log, 4))
    assert node.rejected("new").kind is m.ErrorKind.DRAINING
    node.post(back("back", log))
    node.steps(3)
    assert not node.all_said(m.Drained)
    node.accept("back")
    node.post(ready(node.transfer_id("back")))
    node.step()
    assert node.all_said(m.Drained) == [m.Drained(3)]


def test_a_full_node_hands_back_at_once(node: DecodeNode) -> None:
    log = answered(node)
    node.want_each([f"r{number}" for number in range(6)], 100, 12)
    before = len(node.asked)
    assert before < 6, "some wait for a place"
    node.post(back("back", log))
    assert node.asked[before:] == ["back"]
    for name in (*(f"r{number}" for number in range(6)), "back"):
        node.leave(name)


def test_little_is_not_worth_a_room(node: DecodeNode) -> None:
    node.post(back("back", prompt_of(300, 5).tolist()))
    assert not node.asked and node.finished("back").usage.pulled is None


def test_it_is_bounded_and_those_who_left_meanwhile_are_passed_over(node: DecodeNode) -> None:
    log = answered(node)
    names = [f"b{number}" for number in range(AT_A_TIME + MOST_WAITING + 1)]
    for name in names:
        node.post(back(name, log))
    assert node.asked == names[:AT_A_TIME]
    error = node.rejected(names[-1])
    assert error.kind is m.ErrorKind.NOT_HANDED_BACK and "as many as may" in error.message
    node.leave("b0")
    node.leave(names[AT_A_TIME])
    node.step()
    assert node.all_said(m.HandoverCancelled) == [m.HandoverCancelled(node.transfer_id("b0"))]
    assert node.asked[AT_A_TIME:] == [names[AT_A_TIME + 1]]
    for name in names[:-1]:
        node.leave(name)
    node.step()
    node.assert_at_rest()
    node.post(back("again", log))
    assert node.asked[-1] == "again"
    node.leave("again")


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_lost_one_is_asked_of_another_node_and_never_computed_here(
    node: DecodeNode, elsewhere: bool
) -> None:
    log = answered(node)
    node.post(back("back", log))
    node.post(m.HandoverFailed(node.transfer_id("back"), "cut", elsewhere=elsewhere))
    node.run()
    if elsewhere:
        assert node.asked == ["back", "back"]
        second = node.all_said(m.HandoverWanted)[1].transfer_request.transfer_id
        node.post(m.HandoverFailed(second, "cut", elsewhere=False))
        node.run()
    error = node.rejected("back")
    assert error.kind is m.ErrorKind.NOT_HANDED_BACK and error.message.startswith("cut: ")
    assert not node.tokens("back")


def test_without_a_prefill_node_nothing_is_handed_back(node: DecodeNode, tmp_path: Path) -> None:
    log = answered(node)
    node.post(m.PeersChanged(False))
    fused = Lone(engine_config(tmp_path), parts=tiny_parts())
    for engine in (node, fused):
        engine.post(back("back", log))
        assert engine.rejected("back").kind is m.ErrorKind.NOT_HANDED_BACK
        engine.run()
        engine.assert_at_rest()


def test_the_next_turn_resumes_where_the_answer_ended(node: DecodeNode, tmp_path: Path) -> None:
    """The prefill engine that pulled the state resumes the turn for any decode node."""
    parts = tiny_parts()
    prefill = Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))
    log = answered(node)
    node.post(back("back", [*log, *prompt_of(90, 2)]))
    (wanted,) = node.all_said(m.HandoverWanted)
    prefill.post(m.PrefillReserve(wanted.transfer_request, wanted.prompt))
    prefill.run()
    (pull,) = prefill.all_said(m.PullWanted)
    grant = pull.grant
    node.post(m.PullAsked(grant.transfer_id, grant.tokens, grant.first_page))
    (pinned,) = node.all_said(m.PullPinned)
    copy(node, pinned.source.pages, pinned.source.slot, prefill, grant)
    prefill.post(m.PullCommitted(grant.transfer_id, REPORT))
    prefill.run()
    prefill.post(m.PrefillEnd(grant.transfer_id))
    node.post(m.PullEnd(grant.transfer_id))
    node.leave("back")
    usable = prefill.stats().tree["usable_tokens"]
    turn = np.array([*log, *prompt_of(90, 2)], dtype=np.int32)
    prefill.post(reserve(turn, 0, m.TransferId(77)))
    prefill.run()
    assert prefill.stats().tree["usable_tokens"] - usable == len(log) - 1
    prefill.post(m.PrefillEnd(m.TransferId(77)))
    prefill.assert_at_rest()
