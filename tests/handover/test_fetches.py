"""Fetches as engines see them: pinned, granted, published and quarantined ids, the waiting
requests, and the time when all ids are free again."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.handover.brought_states import MOST
from tasuki.engine.handover.held_states import MOST_IN_ALL, MOST_OF_A_NODE
from tasuki.engine.runner.cpu_runner import CpuRunner
from tests.handover.test_pulls import give, prompt_of, reserve, said, sender_over
from tests.harness.decode_engine import DecodeNode
from tests.harness.engines import Lone, engine_config, prompt, submit, tiny_parts

HELD = 192
"""Tokens held by the prefill node and wanted by the decode node."""
SENT = m.TransferReport(1000, 1, 3, 0.0, 0.1)
SECONDS = 1.5


@pytest.fixture
def prefill(tmp_path: Path) -> Iterator[Lone]:
    """Yield a prefill engine and assert it at rest after the test."""
    parts = tiny_parts()
    node = Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))
    yield node
    node.assert_at_rest()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[DecodeNode]:
    """Yield a decode engine and assert it at rest after the test."""
    node = DecodeNode(tmp_path, max_batch=4)
    yield node
    node.assert_at_rest()


def fetch(
    tokens: np.ndarray, transfer_id: int = 5, salt: bytes = b"", peer: str = "d"
) -> m.FetchReserve:
    return m.FetchReserve(m.FetchRequest(m.TransferId(transfer_id), 3, salt), tokens, peer)


def hold(prefill: Lone, tokens: np.ndarray) -> None:
    """Compute a prompt one token longer, so that a state exists after these tokens."""
    give(prefill, reserve(np.append(tokens, tokens[:1]), 0, m.TransferId(900)))
    give(prefill, m.PrefillStart(m.Grant(m.TransferId(900), 1, 0, (), 0)))
    give(prefill, m.PrefillEnd(m.TransferId(900)))


def refusals(prefill: Lone) -> list[m.FetchRefusal]:
    return [refused.refusal for refused in said(prefill, m.FetchRefused)]


def want(node: DecodeNode, name: str, tokens: np.ndarray, salt: bytes = b"") -> m.HandoverWanted:
    node.post(submit(name, tokens, 4, salt=salt))
    node.step()
    return node.all_said(m.HandoverWanted)[-1]


def advise(node: DecodeNode, wanted: m.HandoverWanted, tokens: int = HELD) -> None:
    node.post(m.FetchAdvised(wanted.transfer_request.transfer_id, "holder", tokens, SECONDS))
    node.step()


def fetches(node: DecodeNode) -> list[m.FetchWanted]:
    return node.all_said(m.FetchWanted)


def granted(node: DecodeNode, fetch: m.FetchWanted) -> m.Grant:
    node.post(m.GrantWanted(fetch.transfer_request.transfer_id))
    node.step()
    (grant,) = [
        each.grant
        for each in node.all_said(m.HandoverGranted)
        if each.grant.transfer_id == fetch.transfer_request.transfer_id
    ]
    return grant


def outcomes(node: DecodeNode) -> list[m.FetchOutcome]:
    return [fetched.outcome for fetched in node.all_said(m.StateFetched)]


# The decode node's half


def test_what_was_fetched_is_offered_with_the_prompt(node: DecodeNode) -> None:
    tokens = prompt_of(400)
    wanted = want(node, "r", tokens)
    assert wanted.may_fetch and wanted.transfer_request.offered == 0
    advise(node, wanted)
    (asked,) = fetches(node)
    assert asked.prompt.tolist() == tokens[:HELD].tolist()
    assert (asked.holder, asked.seconds, asked.transfer_request.salt) == ("holder", SECONDS, b"")
    grant = granted(node, asked)
    assert (grant.first_page, len(grant.pages)) == (0, HELD // 64) and grant.slot is not None
    assert len(node.all_said(m.HandoverWanted)) == 1, "its prompt waits"
    node.post(m.RemoteDone(asked.transfer_request.transfer_id, SENT))
    node.step()
    again = node.all_said(m.HandoverWanted)[-1]
    assert (
        again.request_id == "r"
        and again.transfer_request.transfer_id != wanted.transfer_request.transfer_id
    )
    assert (again.transfer_request.offered, again.transfer_request.kv_matched) == (HELD, HELD)
    assert not again.may_fetch, "once only"
    assert node.all_said(m.StateFetched) == [
        m.StateFetched(m.FetchOutcome.FETCHED, HELD, SENT.bytes, "holder")
    ]
    node.leave("r")


@pytest.mark.parametrize("outcome", [m.FetchOutcome.REFUSED, m.FetchOutcome.LATE])
def test_what_is_not_to_be_had_costs_no_prompt(node: DecodeNode, outcome: m.FetchOutcome) -> None:
    advise(node, want(node, "r", prompt_of(400)))
    node.post(m.FetchLost(fetches(node)[0].transfer_request.transfer_id, outcome))
    node.step()
    again = node.all_said(m.HandoverWanted)[-1]
    assert again.request_id == "r" and again.transfer_request.offered == 0 and not again.may_fetch
    assert outcomes(node) == [outcome]
    node.leave("r")


def test_what_is_lost_after_its_grant_waits_for_the_fence_and_its_prompt_does_not(
    node: DecodeNode,
) -> None:
    advise(node, want(node, "r", prompt_of(400)))
    transfer_id = fetches(node)[0].transfer_request.transfer_id
    granted(node, fetches(node)[0])
    node.post(m.FetchLost(transfer_id, m.FetchOutcome.LOST))
    node.step()
    assert node.all_said(m.HandoverWanted)[-1].transfer_request.offered == 0
    assert node.stats().pages["quarantined"] == HELD // 64
    # Late messages change nothing.
    for late in (m.RemoteDone(transfer_id, SENT), m.FetchLost(transfer_id, m.FetchOutcome.LOST)):
        node.post(late)
    node.post(m.GrantWanted(transfer_id))
    node.step()
    assert node.stats().pages["quarantined"] == HELD // 64
    node.post(m.WriterFenced(transfer_id))
    node.post(m.WriterFenced(transfer_id))
    assert len(node.all_said(m.HandoverWanted)) == 2 and outcomes(node) == [m.FetchOutcome.LOST]
    node.leave("r")


def test_ids_that_were_lost_before_anybody_knew_them_are_free_at_once(
    node: DecodeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device still ran its earlier work at the grant."""
    done: list[bool] = []
    monkeypatch.setattr(CpuRunner, "record_event", lambda self: lambda: bool(done))
    advise(node, want(node, "r", prompt_of(400)))
    transfer_id = fetches(node)[0].transfer_request.transfer_id
    node.post(m.GrantWanted(transfer_id))
    node.post(m.FetchLost(transfer_id, m.FetchOutcome.LATE))
    done.append(True)
    node.step()
    assert not node.all_said(m.HandoverGranted)
    node.leave("r")


def test_prompts_of_one_beginning_wait_for_one_fetch(node: DecodeNode) -> None:
    beginning = prompt_of(HELD, 3)
    names = ["a", "b", "c"]
    for number, name in enumerate(names):
        tokens = np.concatenate([beginning, prompt_of(200, 50 + number)])
        advise(node, want(node, name, tokens))
    (asked,) = fetches(node)
    node.leave("b")
    granted(node, asked)
    node.post(m.RemoteDone(asked.transfer_request.transfer_id, SENT))
    node.step()
    later = node.all_said(m.HandoverWanted)[len(names) :]
    assert [wanted.request_id for wanted in later] == ["a", "c"]
    assert {wanted.transfer_request.offered for wanted in later} == {HELD}
    for name in ("a", "c"):
        node.leave(name)


def test_under_another_salt_it_is_another_beginning(node: DecodeNode) -> None:
    for salt in (b"a", b"b"):
        advise(node, want(node, salt.decode(), prompt_of(400), salt))
    one, other = fetches(node)
    assert (one.transfer_request.salt, other.transfer_request.salt) == (b"a", b"b")
    granted(node, one)
    node.post(m.RemoteDone(one.transfer_request.transfer_id, SENT))
    node.post(m.FetchLost(other.transfer_request.transfer_id, m.FetchOutcome.REFUSED))
    node.step()
    offered = {
        w.request_id: w.transfer_request.offered for w in node.all_said(m.HandoverWanted)[2:]
    }
    assert offered == {"a": HELD, "b": 0}
    node.leave("a")
    node.leave("b")


def test_no_more_is_fetched_at_once_than_may(node: DecodeNode) -> None:
    """Requests beyond the limit continue without a fetch."""
    many = MOST + 3
    for number in range(many):
        advise(node, want(node, f"r{number}", prompt(100, seed=200 + number)), 64)
    assert len(fetches(node)) == MOST
    assert len(node.all_said(m.HandoverWanted)) == many + 3
    for asked in fetches(node):
        node.post(m.FetchLost(asked.transfer_request.transfer_id, m.FetchOutcome.LOST))
    node.step()
    for number in range(many):
        node.leave(f"r{number}")


@pytest.mark.parametrize("tokens", [0, -1, 400, 401])
def test_a_beginning_that_is_none_is_not_fetched(node: DecodeNode, tokens: int) -> None:
    advise(node, want(node, "r", prompt_of(400)), tokens)
    assert not fetches(node) and len(node.all_said(m.HandoverWanted)) == 2
    node.leave("r")


def test_without_room_here_it_is_declined_at_once(tmp_path: Path) -> None:
    node = DecodeNode(tmp_path, slabs=8, max_batch=2)
    advise(node, want(node, "r", prompt_of(120)), 64)
    (asked,) = fetches(node)
    node.post(m.PeersChanged(False))
    # Its five pages and two slots leave one slab, and a fetch takes two.
    node.post(submit("long", prompt_of(300), 8))
    node.steps(2)
    node.post(m.GrantWanted(asked.transfer_request.transfer_id))
    assert [declined.transfer_id for declined in node.all_said(m.HandoverDeclined)] == [
        asked.transfer_request.transfer_id
    ]
    node.post(m.FetchLost(asked.transfer_request.transfer_id, m.FetchOutcome.NO_ROOM))
    node.run()
    assert outcomes(node) == [m.FetchOutcome.NO_ROOM]
    node.assert_at_rest()


def test_advice_for_a_room_that_is_over_is_dropped(node: DecodeNode) -> None:
    wanted = want(node, "r", prompt_of(400))
    node.leave("r")
    advise(node, wanted)
    assert not fetches(node)


# The prefill node's half


def test_what_is_held_is_pinned_until_its_room_ends(prefill: Lone) -> None:
    tokens = prompt_of(HELD)
    hold(prefill, tokens)
    prefill.said.clear()
    give(prefill, m.Drain(1))
    give(prefill, fetch(tokens))
    assert said(prefill, m.PrefillAccepted) == [m.PrefillAccepted(m.TransferId(5))]
    assert prefill.stats().slots["pinned"] == 1
    give(prefill, m.PrefillStart(m.Grant(m.TransferId(5), 3, 0, (1, 2, 3), 0)))
    assert said(prefill, m.StateHeld) == [m.StateHeld(m.TransferId(5))]
    assert not said(prefill, m.PrefillToken), "no token is drawn"
    give(prefill, m.PrefillEnd(m.TransferId(5)), m.PrefillEnd(m.TransferId(5)))
    assert prefill.stats().slots["pinned"] == 0


@pytest.mark.parametrize("tokens", [HELD - 64, HELD - 1, HELD + 1, 400])
def test_only_the_state_behind_exactly_these_tokens_is_sent(prefill: Lone, tokens: int) -> None:
    hold(prefill, prompt_of(HELD))
    give(prefill, fetch(prompt_of(400)[:tokens]))
    assert refusals(prefill) == [m.FetchRefusal.NOT_HELD]


def test_under_another_salt_nothing_is_held(prefill: Lone) -> None:
    hold(prefill, prompt_of(HELD))
    give(prefill, fetch(prompt_of(HELD), salt=b"other"))
    assert refusals(prefill) == [m.FetchRefusal.NOT_HELD]


def test_tokens_that_no_model_has_are_refused(prefill: Lone) -> None:
    for tokens in ([-1] * 64, [2**31 - 1] * 64, [0]):
        give(prefill, fetch(np.array(tokens, dtype=np.int32)))
    assert refusals(prefill) == [m.FetchRefusal.NOT_HELD] * 3


def test_no_more_is_pinned_than_may_of_one_node_and_in_all(prefill: Lone) -> None:
    tokens = prompt_of(64)
    hold(prefill, tokens)
    transfers = iter(range(10, 1000))
    for peer in range(2 + MOST_IN_ALL // MOST_OF_A_NODE):
        for _ in range(MOST_OF_A_NODE + 1):
            give(prefill, fetch(tokens, next(transfers), peer=f"d{peer}"))
    accepted = [
        each.transfer_id for each in said(prefill, m.PrefillAccepted) if each.transfer_id < 900
    ]
    assert len(accepted) == MOST_IN_ALL
    assert set(refusals(prefill)) == {m.FetchRefusal.BUSY}
    give(prefill, *map(m.PrefillEnd, accepted))
    give(prefill, fetch(tokens, 2000))
    assert said(prefill, m.PrefillAccepted)[-1].transfer_id == 2000
    give(prefill, m.PrefillEnd(m.TransferId(2000)))


def test_a_number_that_is_in_use_is_refused(prefill: Lone) -> None:
    tokens = prompt_of(HELD)
    hold(prefill, tokens)
    prefill.said.clear()
    give(prefill, fetch(tokens), fetch(tokens), reserve(tokens, 0, m.TransferId(5)))
    assert refusals(prefill) == [m.FetchRefusal.BUSY] and said(prefill, m.PrefillRefused)
    give(prefill, m.PrefillEnd(m.TransferId(5)))
