"""The return path between both halves over real gRPC: a pull byte by byte, and by scripts each way
it can end."""

import asyncio
from dataclasses import replace
from unittest.mock import Mock

import pytest

from tasuki.engine import messages as m
from tasuki.model.layer_kind import LayerKind
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.reports import Phase
from tasuki.transfer.settings import WirePrecision
from tests.harness.core_script import core
from tests.harness.handover_nodes import Nodes, nodes, on_both_wires, pull_of, source_of
from tests.harness.interaction import Script, play, scripts
from tests.harness.loopback_pair import (
    DRAFT,
    FULL,
    GDN,
    expected_page,
    expected_slot,
    sent_bytes,
    small_layout,
)
from tests.harness.waiting import HANG_SECONDS

TRANSFER_ID = 5


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, core)


async def pulled(both: Nodes) -> m.PullReport:
    """Run a transfer until the prefill engine has the pulled state. Return the report."""
    await both.connected()
    await both.pull(TRANSFER_ID)
    both.client.deliver(m.PullPinned(source_of(TRANSFER_ID, both.pair.target.layout)))
    committed = await both.prefill.wait(m.PullCommitted, TRANSFER_ID)
    assert isinstance(committed, m.PullCommitted)
    return committed.report


def assert_in_order(report: m.PullReport) -> None:
    """Assert that both tracks contain the whole pull, each in order."""
    assert report.timeline is not None
    giver, puller = report.timeline.sender, report.timeline.receiver
    assert [mark.phase for mark in giver.phases] == [Phase.GRANTED, Phase.ACCEPTED, Phase.DONE]
    assert [mark.phase for mark in puller.phases] == [Phase.GRANTED, Phase.DONE, Phase.VERIFIED]
    for track in (giver, puller):
        times = [mark.at for mark in track.phases]
        assert times == sorted(times) and times[0] >= 0
    assert puller.phases[-1].at == report.seconds
    assert sum(chunk.bytes for chunk in giver.windows) == report.bytes
    assert [w.sequence for w in giver.windows] == list(range(len(giver.windows)))
    assert sorted(w.sequence for w in puller.windows) == list(range(len(giver.windows)))
    pinned, done = giver.phases[1].at, giver.phases[2].at
    for chunk in giver.windows:
        assert pinned <= chunk.begun_at <= chunk.posted_at <= chunk.flushed_at <= done
        assert set(chunk.layers_finished) == {chunk.begun_at}
    assert all(chunk.landed_at <= chunk.verified_at for chunk in puller.windows)


async def test_the_client_is_told_of_the_pull_when_all_is_done() -> None:
    """The report is not sent with the first token, because a client waits for it."""
    async with nodes() as both:
        report = await pulled(both)
        await both.hand_over(TRANSFER_ID, report)
        done = await both.decode.wait(m.RemoteDone, TRANSFER_ID)
        (ready,) = both.decode.of(m.RemoteReady, TRANSFER_ID)
        assert isinstance(ready, m.RemoteReady) and isinstance(done, m.RemoteDone)
        assert ready.pulled == replace(report, timeline=None)
        assert done.pull == report.timeline
        await both.quiet()


@on_both_wires
@pytest.mark.parametrize("kinds", [(GDN, GDN, GDN, FULL) * 2, (*(GDN,) * 6, FULL, DRAFT)])
async def test_a_pull_brings_pages_and_state_and_the_room_goes_on(
    kinds: tuple[LayerKind, ...], precision: WirePrecision
) -> None:
    async with nodes(precision=precision, layout=small_layout(kinds)) as both:
        puller, giver = both.pair.source, both.pair.target
        giver.memory[:] = puller.memory
        report = await pulled(both)
        layout, units = puller.layout, WireUnits.of(puller.layout, precision)
        pull, source = pull_of(TRANSFER_ID, layout), source_of(TRANSFER_ID, layout)
        size = sent_bytes(units, len(pull.pages))
        assert (report.tokens, report.bytes) == (250, size)
        assert_in_order(report)
        for ours, theirs in zip(pull.pages, source.pages, strict=True):
            assert puller.page_bytes(ours) == expected_page(units, giver, theirs)
        assert puller.slot_bytes(pull.slot) == expected_slot(units, giver, source.slot)
        await both.decode.wait(m.PullEnd, TRANSFER_ID)
        await both.hand_over(TRANSFER_ID)
        await both.decode.wait(m.RemoteDone, TRANSFER_ID)
        await both.quiet()
        assert not both.prefill.of(m.PullLost) and not both.prefill.of(m.PullFenced)


async def test_a_grant_that_cannot_be_written_is_refused_before_anything_is_posted() -> None:
    """The decode node itself rejects it; a correct prefill node has rejected it before."""
    async with nodes() as both:
        await both.connected()
        await both.reserve(TRANSFER_ID)
        connection = both.client.links[0].connection
        assert connection is not None
        fine = pull_of(TRANSFER_ID, both.pair.source.layout)
        said = []
        for pages, slot, reason in (
            ((10**6,), 0, "is no page"),
            ((1,), 10**6, "is outside"),
            ((-1,), 0, "is no page"),
            (fine.pages[:1], fine.slot, "was not granted"),
        ):
            wrong = replace(fine, pages=pages, slot=slot)
            pull = both.client._begin_pull(wrong, Mock(connection=connection, speak=said.append))
            both.client.deliver(m.PullPinned(source_of(TRANSFER_ID, both.pair.target.layout)))
            async with asyncio.timeout(HANG_SECONDS):
                while pull in both.client._pulls:
                    await asyncio.sleep(0.002)
            assert reason in said[-1].pull_failed.reason
        assert len(said) == len(both.decode.of(m.PullEnd)) == 4
        assert both.pair.target.transport._posted == 0
