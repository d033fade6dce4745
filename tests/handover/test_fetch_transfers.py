"""A fetch between both halves over real gRPC: byte by byte, and by scripts of when one is advised
and each way it can end."""

import numpy as np
import pytest

from tasuki.decode_node.prefill_connection import PrefillConnection
from tasuki.engine import messages as m
from tasuki.transfer.chunks.chunk import FinishedLayers
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.settings import WirePrecision
from tests.harness.handover_nodes import (
    GENERATION,
    PAGES,
    Nodes,
    grant_of,
    nodes,
    on_both_wires,
    wanted,
)
from tests.harness.interaction import Script, play, scripts
from tests.harness.loopback_pair import expected_page, expected_slot, random_ids, sent_bytes
from tests.harness.routing_script import routing
from tests.harness.waiting import HANG_SECONDS

TRANSFER_ID = 5


@scripts(__file__)
def test_script(script: Script) -> None:
    """Prefill nodes are driven by hand."""
    play(script, routing)


def ask(both: Nodes, seconds: float = HANG_SECONDS) -> None:
    transfer_request = m.FetchRequest(m.TransferId(TRANSFER_ID), GENERATION, b"salt")
    fetch = m.FetchWanted(
        transfer_request, wanted(TRANSFER_ID).prompt, f"127.0.0.1:{both.port}", seconds
    )
    both.client.deliver(fetch)


async def granted(both: Nodes) -> m.Grant:
    await both.connected()
    ask(both)
    reserve = await both.prefill.wait(m.FetchReserve)
    assert isinstance(reserve, m.FetchReserve)
    assert reserve.transfer_request == m.FetchRequest(
        m.TransferId(TRANSFER_ID), GENERATION, b"salt"
    )
    assert reserve.prompt.tolist() == wanted(TRANSFER_ID).prompt.tolist() and reserve.peer
    both.service.deliver(m.PrefillAccepted(m.TransferId(TRANSFER_ID)))
    await both.decode.wait(m.GrantWanted, TRANSFER_ID)
    grant = grant_of(TRANSFER_ID, both.pair.target.layout)
    both.client.deliver(m.HandoverGranted(grant))
    await both.prefill.wait(m.PrefillStart, TRANSFER_ID)
    return grant


def send(both: Nodes) -> tuple[tuple[int, ...], int]:
    """Send all layers at once, as computed long ago. Return the sender's own page ids and slot."""
    source = both.pair.source
    pages, slot = random_ids(source.layout, source.slabs, PAGES, np.random.default_rng(8))
    both.pair.sender.plan_forward(TRANSFER_ID, FinishedLayers.long_finished(0, pages, slot))
    both.service.deliver(m.StateHeld(m.TransferId(TRANSFER_ID)))
    return pages, slot


@on_both_wires
async def test_a_fetch_brings_pages_and_state_and_no_token(precision: WirePrecision) -> None:
    async with nodes(precision=precision) as both:
        grant = await granted(both)
        pages, slot = send(both)
        done = await both.decode.wait(m.RemoteDone, TRANSFER_ID)
        assert isinstance(done, m.RemoteDone)
        source, target = both.pair.source, both.pair.target
        units = WireUnits.of(source.layout, precision)
        assert done.transfer.bytes == sent_bytes(units, len(pages))
        for ours, theirs in zip(grant.pages, pages, strict=True):
            assert target.page_bytes(ours) == expected_page(units, source, theirs)
        assert grant.slot is not None
        assert target.slot_bytes(grant.slot) == expected_slot(units, source, slot)
        await both.prefill.wait(m.PrefillEnd, TRANSFER_ID)
        await both.quiet()
        assert not both.decode.of(m.RemoteReady) and not both.decode.of(m.FetchLost)


@pytest.mark.parametrize("refusal", m.FetchRefusal)
async def test_a_refused_fetch_is_lost_before_anything_was_granted(refusal: m.FetchRefusal) -> None:
    async with nodes() as both:
        await both.connected()
        ask(both)
        await both.prefill.wait(m.FetchReserve)
        both.service.deliver(m.FetchRefused(m.TransferId(TRANSFER_ID), refusal))
        lost = await both.decode.wait(m.FetchLost, TRANSFER_ID)
        assert lost == m.FetchLost(m.TransferId(TRANSFER_ID), m.FetchOutcome.REFUSED)
        await both.prefill.wait(m.PrefillEnd, TRANSFER_ID)
        await both.quiet()
        assert not both.decode.of(m.WriterFenced)


async def test_a_fetch_that_cannot_be_opened_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unforeseen error still answers the fetch, because prompts wait for its answer."""

    def broken(connection: PrefillConnection) -> None:
        raise RuntimeError("no stream")

    async with nodes() as both:
        await both.connected()
        with monkeypatch.context() as breaking:
            breaking.setattr(PrefillConnection, "stream", broken)
            ask(both)
            lost = await both.decode.wait(m.FetchLost, TRANSFER_ID)
        assert lost == m.FetchLost(m.TransferId(TRANSFER_ID), m.FetchOutcome.LOST)
        await both.quiet()


async def test_a_holder_that_goes_after_the_grant_is_fenced() -> None:
    async with nodes() as both:
        await granted(both)
        await both.service.stop()
        lost = await both.decode.wait(m.FetchLost, TRANSFER_ID)
        assert lost == m.FetchLost(m.TransferId(TRANSFER_ID), m.FetchOutcome.LOST)
        await both.decode.wait(m.WriterFenced, TRANSFER_ID)
        await both.prefill.wait(m.PrefillEnd, TRANSFER_ID)
        await both.quiet()


async def test_a_node_that_stops_waits_for_the_fences_of_what_it_fetches() -> None:
    async with nodes() as both:
        await granted(both)
        await both.client.stop()
        assert both.decode.of(m.FetchLost, TRANSFER_ID) and both.decode.of(
            m.WriterFenced, TRANSFER_ID
        )
        await both.prefill.wait(m.PrefillEnd, TRANSFER_ID)
