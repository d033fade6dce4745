"""A decode engine handles the states of a prefill node that ends: it fetches each and offers it to
one that stays. If it need not or cannot, it answers at once. Nothing stays held."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.handover.offered_states import AT_A_TIME
from tests.handover.test_drain_targets import REPORT, offered, take
from tests.handover.test_pulls import prompt_of
from tests.harness.decode_engine import DecodeNode

TOKENS = 128
SECONDS = 2.0
SENT = m.TransferReport(1000, 1, 2, 0.0, 0.1)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DecodeNode]:
    node = DecodeNode(tmp_path, max_batch=2)
    yield node
    node.assert_at_rest()


def pass_on(
    node: DecodeNode, query: int, tokens: np.ndarray | None = None, *, known: bool = False
) -> None:
    state = m.GivenState(7, prompt_of(TOKENS, query) if tokens is None else tokens, b"salt", known)
    node.post(m.PassOn(query, state, "holder", SECONDS))
    node.step()


def passed(node: DecodeNode) -> list[m.StatePassedOn]:
    return node.all_said(m.StatePassedOn)


def bring(node: DecodeNode, fetch: m.FetchWanted) -> None:
    transfer_id = fetch.transfer_request.transfer_id
    node.post(m.GrantWanted(transfer_id))
    node.step()
    assert transfer_id in [said.grant.transfer_id for said in node.all_said(m.HandoverGranted)]
    node.post(m.RemoteDone(transfer_id, SENT))
    node.step()


def test_it_is_fetched_and_an_heir_takes_it(node: DecodeNode) -> None:
    pass_on(node, 1)
    (fetch,) = node.all_said(m.FetchWanted)
    assert (fetch.holder, fetch.seconds, fetch.transfer_request.salt) == (
        "holder",
        SECONDS,
        b"salt",
    )
    assert fetch.prompt.tolist() == prompt_of(TOKENS, 1).tolist()
    assert not offered(node)
    bring(node, fetch)
    (wanted,) = offered(node)
    assert wanted.transfer_request.offered == TOKENS and wanted.transfer_request.salt == b"salt"
    assert wanted.prompt[:-1].tolist() == fetch.prompt.tolist()
    take(node, wanted)
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.TAKEN, REPORT.bytes, "heir")]
    assert not node.all_said(m.StateLeft), "whoever ends counts it"


def test_what_is_here_is_not_fetched(node: DecodeNode) -> None:
    pass_on(node, 1)
    bring(node, node.all_said(m.FetchWanted)[0])
    take(node, offered(node)[0])
    pass_on(node, 2, prompt_of(TOKENS, 1))
    assert len(node.all_said(m.FetchWanted)) == 1
    take(node, offered(node)[1])
    assert [each.query_id for each in passed(node)] == [1, 2]


def test_what_goes_on_here_stays_here(node: DecodeNode) -> None:
    """This node has the KV after all of these tokens, and the next turn comes here."""
    node.post(m.PeersChanged(False))
    log = node.ask("turn", prompt_of(150, 3), 5, salt=b"salt")
    assert log
    node.post(m.PeersChanged(True))
    pass_on(node, 1, prompt_of(150, 3)[:TOKENS], known=True)
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.HELD)]
    pass_on(node, 2, prompt_of(TOKENS, 4), known=True)
    assert len(node.all_said(m.FetchWanted)) == 1, "evicted here, if it ever was"
    node.post(
        m.FetchLost(
            node.all_said(m.FetchWanted)[0].transfer_request.transfer_id, m.FetchOutcome.REFUSED
        )
    )
    node.step()


@pytest.mark.parametrize("outcome", [m.FetchOutcome.REFUSED, m.FetchOutcome.LATE])
def test_what_is_not_to_be_had_is_offered_to_nobody(
    node: DecodeNode, outcome: m.FetchOutcome
) -> None:
    pass_on(node, 1)
    node.post(m.FetchLost(node.all_said(m.FetchWanted)[0].transfer_request.transfer_id, outcome))
    node.step()
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.LOST)] and not offered(node)


def test_a_fetch_that_is_lost_after_its_grant_waits_for_its_fence_alone(node: DecodeNode) -> None:
    pass_on(node, 1)
    transfer_id = node.all_said(m.FetchWanted)[0].transfer_request.transfer_id
    node.post(m.GrantWanted(transfer_id))
    node.step()
    node.post(m.FetchLost(transfer_id, m.FetchOutcome.LOST))
    node.step()
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.LOST)]
    assert node.stats().pages["quarantined"]
    node.post(m.WriterFenced(transfer_id))


def test_an_heir_that_pulls_nothing_has_declined(node: DecodeNode) -> None:
    pass_on(node, 1)
    bring(node, node.all_said(m.FetchWanted)[0])
    node.post(m.GrantWanted(offered(node)[0].transfer_request.transfer_id))
    node.step()
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.DECLINED)]


def test_a_lost_heir_leaves_it_to_another_one_once(node: DecodeNode) -> None:
    pass_on(node, 1)
    bring(node, node.all_said(m.FetchWanted)[0])
    node.post(
        m.HandoverFailed(offered(node)[0].transfer_request.transfer_id, "cut", elsewhere=True)
    )
    node.step()
    first, second = offered(node)
    assert first.transfer_request.transfer_id != second.transfer_request.transfer_id and not passed(
        node
    )
    node.post(m.HandoverFailed(second.transfer_request.transfer_id, "cut"))
    node.step()
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.LOST)]


def test_what_a_prefill_node_holds_by_then_is_passed_over(node: DecodeNode) -> None:
    pass_on(node, 1)
    bring(node, node.all_said(m.FetchWanted)[0])
    node.post(m.AlreadyHeld(offered(node)[0].transfer_request.transfer_id))
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.HELD)]


def test_without_heirs_it_is_answered_for(node: DecodeNode) -> None:
    pass_on(node, 1)
    node.post(m.PeersChanged(False))
    bring(node, node.all_said(m.FetchWanted)[0])
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.LOST)] and not offered(node)


def test_few_are_offered_at_a_time_and_none_is_forgotten(node: DecodeNode) -> None:
    many = AT_A_TIME + 2
    for query in range(1, many + 1):
        pass_on(node, query)
        bring(node, node.all_said(m.FetchWanted)[query - 1])
    assert len(offered(node)) == AT_A_TIME
    for done in range(many):
        take(node, offered(node)[done])
    assert {each.query_id for each in passed(node)} == set(range(1, many + 1))
    assert {each.outcome for each in passed(node)} == {m.DrainTargetOutcome.TAKEN}


@pytest.mark.parametrize("tokens", [[0, 5000], [-1, 3], list(range(100)) * 50])
def test_a_state_that_no_node_takes_is_declined(node: DecodeNode, tokens: list[int]) -> None:
    """Its tokens are not in the vocabulary, or are too many."""
    pass_on(node, 1, np.array(tokens, dtype=np.int32))
    assert passed(node) == [m.StatePassedOn(1, m.DrainTargetOutcome.DECLINED)]
    assert not node.all_said(m.FetchWanted)


def test_a_node_that_ends_meanwhile_answers_for_it(node: DecodeNode) -> None:
    """Its own states go to drain targets first; states of other nodes do not delay its end."""
    pass_on(node, 1)
    bring(node, node.all_said(m.FetchWanted)[0])
    (wanted,) = offered(node)
    node.post(m.Drain(9))
    node.post(m.LeaveToDrainTargets(9))
    node.step()
    node.post(m.EndLeaving())
    assert node.all_said(m.LeftToDrainTargets)
    for each in offered(node):
        node.post(m.HandoverFailed(each.transfer_request.transfer_id, "the node ends"))
    node.step()
    assert m.StatePassedOn(1, m.DrainTargetOutcome.LOST) in passed(node)
    assert wanted in offered(node)
