"""The return path as engines see it: pinned, granted, published and quarantined ids, and the time
when they are free again."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.accounting import LEAST
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import Role
from tasuki.engine.handover.decode_side import DecodeHandover
from tasuki.engine.handover.prefill_side import PrefillHandover
from tasuki.engine.routing import CostLearner
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.chunks.digest import ChunkDigester
from tasuki.transfer.sending.link import SourceArena
from tasuki.transfer.sending.sender import Sender
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport
from tests.harness.engines import Lone, engine_config, submit, tiny_parts
from tests.harness.tiny_pictures import Prompt

TRANSFER_ID = m.TransferId(9)
REPORT = m.PullReport(0, 1, 0.1)


def prompt_of(length: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 128, length, dtype=np.int32)


def sender_over(parts: EngineParts) -> Sender:
    arena = parts.arena
    transport = LoopbackTransport(LoopbackFabric(), "prefill")
    transport.register(arena.address, arena.size)
    digester = ChunkDigester(arena.bytes.numpy(), arena.layout)
    source = SourceArena.direct(arena.layout, transport, digester, parts.steps, arena.slabs)
    return Sender(arena.layout, [source])


@pytest.fixture
def prefill(tmp_path: object) -> Iterator[Lone]:
    parts = tiny_parts()
    yield Lone(engine_config(tmp_path), Role.PREFILL, parts, sender_over(parts))


@pytest.fixture
def decode(tmp_path: object) -> Iterator[Lone]:
    yield Lone(engine_config(tmp_path, local_prefill_tokens=64), Role.DECODE, tiny_parts())


def reserve(
    prompt: np.ndarray, offered: int, transfer_id: m.TransferId = TRANSFER_ID
) -> m.PrefillReserve:
    transfer_request = m.TransferRequest(
        transfer_id, 1, 0, SamplingParams(max_new_tokens=4), b"", offered=offered
    )
    return m.PrefillReserve(transfer_request, prompt)


def test_nodes_without_sight_refuse_pictures(prefill: Lone, decode: Lone) -> None:
    """A decode node refuses them, and a prefill node refuses keys without places."""
    made = Prompt().text([1, 2, 3]).picture("a", 2, 3).text([4])
    for name, purpose in (("r", m.Purpose.ANSWER), ("h", m.Purpose.HAND_BACK)):
        asked = submit(name, made.tokens, 4, pictures=tuple(made.pictures), purpose=purpose)
        decode.post(asked)
        error = decode.rejected(name)
        assert error.kind is m.ErrorKind.INVALID and "this node sees none" in error.message
    prefill.post(reserve(asked.keys, 0))
    (refused,) = said(prefill, m.PrefillRefused)
    assert "prompt has pictures" in refused.error.message
    decode.assert_at_rest()
    prefill.assert_at_rest()


def said(node: Lone, kind: type) -> list:
    return [message for message in node.said if isinstance(message, kind)]


def copy(source: Lone, pages: tuple[int, ...], slot: int, target: Lone, grant: m.PullGrant) -> None:
    """Copy the data as the wire would."""
    theirs, ours = source.parts.arena, target.parts.arena
    for layer, kv in enumerate(ours.views("kv")):
        kv[list(grant.pages)] = theirs.views("kv")[layer][list(pages)]
    for name in ("conv", "ssm"):
        for mine, other in zip(ours.views(name), theirs.views(name), strict=True):
            mine[grant.slot] = other[slot]


def give(node: Lone, *messages: m.Inbox) -> None:
    """Post, and run until nothing can."""
    for message in messages:
        node.post(message)
    node.run()


def next_turn(node: Lone, more: int = 100) -> m.HandoverWanted:
    """Answer a prompt, so that its turn end is in the tree. Return the next turn's message to a
    prefill node, with its transfer request."""
    prompt = prompt_of(150)
    give(node, submit("turn", prompt, 5))
    log = [*prompt, *node.tokens("turn"), *prompt_of(more, 7)]
    give(node, m.PeersChanged(True), submit("next", log, 4))
    (wanted,) = said(node, m.HandoverWanted)
    return wanted


def pulled(decode: Lone, prefill: Lone, wanted: m.HandoverWanted) -> m.PullGrant:
    """Ask for the offered state, pin, copy and commit it. Return its destination."""
    give(prefill, m.PrefillReserve(wanted.transfer_request, wanted.prompt))
    (pull,) = said(prefill, m.PullWanted)
    grant = pull.grant
    decode.post(m.PullAsked(grant.transfer_id, grant.tokens, grant.first_page))
    (pinned,) = said(decode, m.PullPinned)
    copy(decode, pinned.source.pages, pinned.source.slot, prefill, grant)
    give(prefill, m.PullCommitted(grant.transfer_id, REPORT))
    return grant


def test_a_pull_makes_the_answer_usable_at_its_exact_token(decode: Lone, prefill: Lone) -> None:
    wanted = next_turn(decode)
    offered = wanted.transfer_request.offered
    assert offered == 154 and offered % PAGE_TOKENS
    grant = pulled(decode, prefill, wanted)
    assert (grant.tokens, grant.first_page, len(grant.pages)) == (offered, 0, 3)
    assert said(prefill, m.PrefillAccepted)
    stats = prefill.stats()
    assert stats.integrity == "ok" and stats.pages["granted"] == 0
    assert stats.tree["usable_tokens"] == offered and stats.tree["leased_requests"] == 1
    prefill.post(m.PrefillEnd(grant.transfer_id))
    prefill.assert_at_rest()
    decode.post(m.PullEnd(grant.transfer_id))
    decode.post(m.Abort(m.RequestId("next")))
    decode.assert_at_rest()


def test_the_tokens_after_a_pull_are_those_of_one_process(
    decode: Lone, prefill: Lone, tmp_path: object
) -> None:
    wanted = next_turn(decode)
    grant = pulled(decode, prefill, wanted)
    give(prefill, m.PrefillStart(m.Grant(grant.transfer_id, 1, 0, (), 0)))
    (token,) = said(prefill, m.PrefillToken)
    assert token.hit.usable_tokens == grant.tokens and token.pulled == REPORT
    fused = Lone(engine_config(tmp_path), parts=tiny_parts())
    give(fused, submit("whole", wanted.prompt, 1))
    assert [token.token] == fused.tokens("whole")


def test_a_lost_pull_is_quarantined_and_the_prompt_is_computed(prefill: Lone) -> None:
    give(prefill, reserve(prompt_of(300), 200))
    give(prefill, m.PullLost(TRANSFER_ID))
    assert said(prefill, m.PrefillAccepted), "computed without it"
    stats = prefill.stats()
    assert stats.pages["quarantined"] == 4 and stats.slots["quarantined"] == 1
    assert len(said(prefill, m.PullWanted)) == 1, "pulled once only"
    prefill.post(m.PrefillEnd(TRANSFER_ID))
    prefill.post(m.PullFenced(TRANSFER_ID))
    prefill.assert_at_rest()


@pytest.mark.parametrize("lost", [False, True])
def test_a_room_that_ends_leaves_its_pull_to_end_by_itself(prefill: Lone, lost: bool) -> None:
    give(prefill, reserve(prompt_of(300), 200))
    prefill.post(m.PrefillEnd(TRANSFER_ID))
    stats = prefill.stats()
    assert stats.requests == {} and stats.pages["granted"] == 4
    if lost:
        prefill.post(m.PullLost(TRANSFER_ID))
        prefill.post(m.PullFenced(TRANSFER_ID))
    else:
        give(prefill, m.PullCommitted(TRANSFER_ID, REPORT))
    prefill.assert_at_rest()
    assert prefill.stats().pages["tree"] == (0 if lost else 4)


@pytest.mark.parametrize("lost", [False, True], ids=["live", "quarantined"])
def test_a_number_whose_pull_is_not_over_is_not_pulled_for_again(prefill: Lone, lost: bool) -> None:
    """Otherwise a peer with a reused number would leave the first destination held for ever. It
    could also publish one pull's pages by the message of the other."""
    first, second = prompt_of(300, 1), prompt_of(300, 2)
    give(prefill, reserve(first, 200))
    prefill.post(m.PrefillEnd(TRANSFER_ID))
    if lost:
        prefill.post(m.PullLost(TRANSFER_ID))
    give(prefill, reserve(second, 200))
    assert len(said(prefill, m.PullWanted)) == 1
    assert len(said(prefill, m.PrefillAccepted)) == 1, "it is computed instead"
    if not lost:
        prefill.post(m.PullLost(TRANSFER_ID))
    assert prefill.stats().pages["quarantined"] == 4
    prefill.post(m.PullFenced(TRANSFER_ID))
    assert prefill.stats().pages["quarantined"] == 0
    prefill.post(m.PrefillEnd(TRANSFER_ID))
    prefill.assert_at_rest()
    # The number is good again.
    give(prefill, reserve(prompt_of(300, 3), 200))
    assert len(said(prefill, m.PullWanted)) == 2


@pytest.mark.parametrize(("new_tokens", "unasked"), [(1, 1), (4, 0)])
def test_what_a_session_hands_back_is_shown_before_its_token(
    prefill: Lone, new_tokens: int, unasked: int
) -> None:
    """The target decode node then finds it; otherwise it is sent when decode nodes next ask."""
    give(prefill, m.ReadUsable())
    shown = len(said(prefill, m.UsableRead))
    transfer_request = replace(
        reserve(prompt_of(201), 200).transfer_request,
        sampling=SamplingParams(max_new_tokens=new_tokens),
    )
    give(prefill, m.PrefillReserve(transfer_request, prompt_of(201)))
    give(prefill, m.PullCommitted(TRANSFER_ID, REPORT))
    assert len(said(prefill, m.UsableRead)) - shown == unasked
    prefill.post(m.PrefillEnd(TRANSFER_ID))
    prefill.assert_at_rest()


def test_too_little_to_gain_is_not_pulled(prefill: Lone) -> None:
    give(prefill, reserve(prompt_of(300), 31))
    assert said(prefill, m.PrefillAccepted) and not said(prefill, m.PullWanted)


def test_an_offer_is_pinned_until_it_was_sent(decode: Lone) -> None:
    wanted = next_turn(decode)
    transfer_request = wanted.transfer_request
    decode.post(m.PullAsked(transfer_request.transfer_id, transfer_request.offered, 1))
    (pinned,) = said(decode, m.PullPinned)
    assert len(pinned.source.pages) == 2
    before = decode.parts.arena.bytes.clone()
    decode.post(m.FlushCache(1))
    stats = decode.stats()
    assert stats.integrity == "ok" and stats.tree["leases"] == 1 and stats.slots["tree"] == 1
    assert (decode.parts.arena.bytes == before).all()
    decode.post(m.HandoverFailed(transfer_request.transfer_id, "cut"))
    give(decode, m.PullEnd(transfer_request.transfer_id))
    decode.assert_at_rest()


def test_what_was_evicted_or_is_another_rooms_is_refused(decode: Lone) -> None:
    wanted = next_turn(decode)
    transfer_request = wanted.transfer_request
    decode.post(m.PullAsked(m.TransferId(1), transfer_request.offered, 0))
    decode.post(m.PullAsked(transfer_request.transfer_id, transfer_request.offered - 1, 0))
    decode.post(m.FlushCache(1))
    decode.post(m.PullAsked(transfer_request.transfer_id, transfer_request.offered, 0))
    assert [message.transfer_id for message in said(decode, m.PullRefused)] == [
        1,
        transfer_request.transfer_id,
        transfer_request.transfer_id,
    ]
    decode.post(m.Abort(m.RequestId("next")))
    decode.assert_at_rest()


def costs_of(node: Lone) -> CostLearner:
    handover = node.engine._handover
    assert isinstance(handover, DecodeHandover | PrefillHandover)
    return handover._router.costs


def teach(node: Lone, here: float, there: float) -> None:
    """Set the seconds per token on this node and on the other."""
    meter = costs_of(node)
    for tokens in range(100, 100 * (LEAST + 1), 100):
        meter.here.add(tokens, here * tokens)
        meter.there.add(tokens, there * tokens)
        meter.sent.add(1000 * tokens, 1e-9 * tokens)


@pytest.mark.parametrize(("here", "there", "stays"), [(1e-4, 1e-2, True), (1e-2, 1e-4, False)])
def test_measured_rates_decide_and_are_told(
    decode: Lone, here: float, there: float, stays: bool
) -> None:
    teach(decode, here, there)
    decode.post(m.PeersChanged(True))
    give(decode, submit("asked", prompt_of(400 if stays else 40), 2))
    assert bool(said(decode, m.HandoverWanted)) is not stays
    if not stays:
        decode.post(m.Abort(m.RequestId("asked")))
    route = decode.finished("asked").usage.route
    assert route is not None and route.choice == ("here" if stays else "there")
    assert (route.estimates["here"] <= route.estimates["there"]) is stays


def test_a_fixed_route_is_not_moved_by_rates(tmp_path: object) -> None:
    config = engine_config(tmp_path, local_prefill_tokens=64, route="fixed")
    node = Lone(config, Role.DECODE, tiny_parts())
    teach(node, here=1e-9, there=1.0)
    node.post(m.PeersChanged(True))
    give(node, submit("asked", prompt_of(400), 2))
    assert said(node, m.HandoverWanted)
    node.post(m.Abort(m.RequestId("asked")))
    assert node.finished("asked").usage.route == m.RouteReport("there", {})


def test_a_pull_that_takes_longer_than_the_forward_is_not_begun(prefill: Lone) -> None:
    for tokens in range(1, LEAST + 1):
        costs_of(prefill).forwarded.add(tokens, tokens * 1e-6)
    for size in range(1, LEAST + 1):
        costs_of(prefill).pulled.add(size, 1.0)
    give(prefill, reserve(prompt_of(300), 200))
    assert said(prefill, m.PrefillAccepted) and not said(prefill, m.PullWanted)
