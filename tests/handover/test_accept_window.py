"""A decode node without destinations holds only its share of a prefill engine and delays only its
own transfers. Waiting transfers learn their places without a message for each move."""

import asyncio
from itertools import pairwise
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.accounting import FRESH, LEAST
from tasuki.engine.config import Role
from tasuki.engine.scheduling.admission import AcceptWindow
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.prefill_node.transfers import OutgoingTransfer
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import sending
from tasuki.transfer.sending.sender import Sender
from tests.handover.test_pulls import REPORT, costs_of, prompt_of, reserve, sender_over
from tests.harness.engines import Lone, engine_config, tiny_parts
from tests.harness.waiting import HANG_SECONDS

AHEAD = 16
"""Transfers of one decode node that may hold KV before they begin."""
PULLED = 32
"""Number of them that may pull at a time."""


def test_a_decode_node_that_grants_nothing_keeps_its_share() -> None:
    window = AcceptWindow(100_000, AHEAD)
    for number in range(1, AHEAD + 1):
        assert window.has_room("full", 100)
        window.enter("full", m.TransferId(number), 100)
    assert not window.has_room("full", 1) and window.has_room("other", 100)
    for left in (1, 1):
        window.leave("full", m.TransferId(3))
        assert window.has_room("full", 100) and window.left == left
    window.leave("nobody", m.TransferId(3))
    assert window.left == 1


@pytest.mark.parametrize(("tokens", "together"), [(100, 10), (600, 1), (5000, 1)])
def test_prompts_ahead_are_a_part_of_what_fits_and_one_always_may(
    tokens: int, together: int
) -> None:
    window = AcceptWindow(4000, AHEAD)
    entered = 0
    while entered < 2 * AHEAD and window.has_room("full", tokens):
        entered += 1
        window.enter("full", m.TransferId(entered), tokens)
    assert entered == together


@pytest.fixture
def node(tmp_path: Path) -> Lone:
    parts = tiny_parts(arena_mib=0.5)
    return Lone(engine_config(tmp_path, max_batch=80), Role.PREFILL, parts, sender_over(parts))


def of(peer: str, number: int, tokens: int = 100) -> m.PrefillReserve:
    asked = reserve(prompt_of(tokens, seed=number), 0, m.TransferId(number))
    return m.PrefillReserve(asked.transfer_request, asked.prompt, peer)


def test_rooms_of_other_decode_nodes_are_begun_though_one_is_full(node: Lone) -> None:
    for number in range(1, 41):
        node.post(of("full", number))
    node.run()
    held = len(node.all_said(m.PrefillAccepted))
    assert 0 < held < 40
    node.post(of("other", 100))
    node.run()
    assert node.all_said(m.PrefillAccepted)[-1].transfer_id == 100
    node.post(m.PrefillStart(m.Grant(m.TransferId(100), 1, 2, (), 0)))
    node.run()
    assert [token.transfer_id for token in node.all_said(m.PrefillToken)] == [100]
    for number in (*range(1, 41), 100):
        node.post(m.PrefillEnd(m.TransferId(number)))
    node.run()
    assert len(node.all_said(m.PrefillAccepted)) == held + 1, "what was ended is not begun"
    node.assert_at_rest()


def test_only_so_many_rooms_pull_and_none_of_them_takes_another_one_s_turn(tmp_path: Path) -> None:
    parts = tiny_parts(arena_mib=4)
    node = Lone(engine_config(tmp_path, max_batch=80), Role.PREFILL, parts, sender_over(parts))
    transfers = range(1, PULLED + AHEAD + 5)
    for number in transfers:
        node.post(reserve(prompt_of(100, seed=number), 90, m.TransferId(number)))
    node.run()

    def pulling() -> list[m.TransferId]:
        return [pull.grant.transfer_id for pull in node.all_said(m.PullWanted)]

    def accepted() -> list[m.TransferId]:
        return [said.transfer_id for said in node.all_said(m.PrefillAccepted)]

    # Requests without a place to pull are computed without a pull, up to AHEAD.
    assert pulling() == list(transfers)[:PULLED] and accepted() == list(transfers)[PULLED:][:AHEAD]
    node.post(m.PullCommitted(transfers[0], REPORT))
    node.post(m.PullLost(transfers[1]))
    node.run()
    # A lost pull keeps its place until its writer is fenced, and the others wait.
    assert len(pulling()) == PULLED + 1 and len(accepted()) == AHEAD
    node.post(m.PullFenced(transfers[1]))
    node.run()
    assert len(pulling()) == PULLED + 2
    node.post(m.PrefillEnd(accepted()[0]))
    node.run()
    assert accepted()[AHEAD:] == [transfers[0]], "whose pull is over comes first"
    for number in transfers:
        node.post(m.PrefillEnd(m.TransferId(number)))
    for transfer_id in pulling()[2:]:
        node.post(m.PullLost(transfer_id))
        node.post(m.PullFenced(transfer_id))
    node.run()
    node.assert_at_rest()


def test_a_room_that_waits_is_judged_once_however_often_it_is_looked_at(tmp_path: Path) -> None:
    parts = tiny_parts(arena_mib=4)
    node = Lone(engine_config(tmp_path, max_batch=80), Role.PREFILL, parts, sender_over(parts))
    for amount in range(1, LEAST + 1):
        costs_of(node).forwarded.add(amount, amount * 1e-6)
        costs_of(node).pulled.add(amount, 1.0)
    transfers = range(1, AHEAD + 2)
    for number in transfers:
        node.post(reserve(prompt_of(100, seed=number), 90, m.TransferId(number)))
    node.run()
    assert len(node.all_said(m.PrefillAccepted)) == AHEAD
    assert costs_of(node).pulled.verdicts_since == AHEAD
    for step in range(2 * FRESH):
        node.post(m.PrefillEnd(m.TransferId(1000 + step)))
        node.run()
    # The measurement is fresh, so the waiting transfer does not measure again.
    assert costs_of(node).pulled.verdicts_since == AHEAD and not node.all_said(m.PullWanted)
    for number in transfers:
        node.post(m.PrefillEnd(m.TransferId(number)))
    node.run()
    node.assert_at_rest()


def test_a_queue_of_many_is_emitted_once_for_each_time_that_it_moves(tmp_path: Path) -> None:
    parts = tiny_parts(arena_mib=2)
    node = Lone(engine_config(tmp_path, max_batch=1), Role.PREFILL, parts, sender_over(parts))
    count = 60
    for number in range(1, count + 1):
        node.post(of("peer", number, 10))
    moved = 0
    for number in range(1, count + 1):
        node.step()
        accepted = {said.transfer_id for said in node.all_said(m.PrefillAccepted)}
        assert m.TransferId(number) in accepted
        node.post(m.PrefillStart(m.Grant(m.TransferId(number), 1, 1, (), 0)))
        node.run()
        node.post(m.PrefillEnd(m.TransferId(number)))
        moved += 1
    orders = node.all_said(m.PrefillQueue)
    assert len(orders) <= 2 * moved
    assert all(before.transfers != after.transfers for before, after in pairwise(orders))
    places = [order.transfers.index(m.TransferId(count)) for order in orders]
    assert places == sorted(places, reverse=True) and len(set(places)) > 40


def waiting_transfer(
    progress_seconds: float, outgoing: list[pb.SenderMessage], transfer_id: int = 1
) -> OutgoingTransfer:
    """Return a transfer that has begun and waits. outgoing: receives its messages."""
    transfer_request = m.TransferRequest(m.TransferId(transfer_id), 1, 0, SamplingParams(), b"")
    made = OutgoingTransfer(
        m.PrefillReserve(transfer_request, np.ones(3, dtype=np.int32)),
        "connection",
        lambda message: None,
        Mock(spec=Sender),
        progress_seconds,
        Mock(),
        outgoing.append,
    )
    made.begin()
    return made


def said(outgoing: list[pb.SenderMessage]) -> list[int]:
    """Return the messages since the last call."""
    assert all(message.WhichOneof("message") == "queued" for message in outgoing)
    found = [message.queued.position for message in outgoing]
    outgoing.clear()
    return found


async def test_a_place_is_said_at_once_and_while_the_queue_runs_fast_with_the_repetition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Longer than a busy machine takes for all those moves.
    monkeypatch.setattr(sending, "_SAID_AGAIN_SECONDS", 2 * HANG_SECONDS)

    outgoing: list[pb.SenderMessage] = []
    transfer = waiting_transfer(0.05, outgoing)
    for place in range(1000, 500, -1):
        transfer.put(on.Moved(place))
    assert said(outgoing) == [1000], "not one for each move"
    # The last of them is not lost.
    async with asyncio.timeout(HANG_SECONDS):
        while not outgoing:
            await asyncio.sleep(0.01)
    assert set(said(outgoing)) == {501}
    transfer._side._said_at -= 3 * HANG_SECONDS
    transfer.put(on.Moved(501))
    assert said(outgoing) == [], "it did not move"
    transfer.put(on.Moved(500))
    assert said(outgoing) == [500], "a queue that moves slowly is said to move when it does"
