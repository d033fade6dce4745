"""Both halves of the hand-over over real gRPC: the normal case byte by byte, and by scripts an end
in every phase."""

from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.transfer.precision.wire_layout import WireUnits
from tasuki.transfer.settings import WirePrecision
from tests.harness.core_script import core
from tests.harness.handover_nodes import HIT, grant_of, nodes, on_both_wires, wanted
from tests.harness.interaction import Script, play, scripts
from tests.harness.loopback_pair import expected_page, expected_slot, sent_bytes

TRANSFER_ID = 5


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, core)


@on_both_wires
async def test_a_room_goes_from_reserve_to_done(precision: WirePrecision) -> None:
    async with nodes(precision=precision) as both:
        await both.connected()
        local, slot = await both.hand_over(TRANSFER_ID)
        (reserve,) = both.prefill.of(m.PrefillReserve)
        assert reserve.transfer_request == wanted(TRANSFER_ID).transfer_request
        assert (reserve.prompt == wanted(TRANSFER_ID).prompt).all()
        granted = grant_of(TRANSFER_ID, both.pair.target.layout)
        assert both.prefill.of(m.PrefillStart) == [m.PrefillStart(granted)]
        ready = await both.decode.wait(m.RemoteReady)
        assert isinstance(ready, m.RemoteReady)
        assert ready.prefill_choice is not None and ready.prefill_choice.reason == "only"
        assert replace(ready, tail_seconds=None, prefill_choice=None) == m.RemoteReady(
            m.TransferId(TRANSFER_ID), 42, -0.5, 1.25, HIT, "prefill-0"
        )
        # None if the token came before the first layer chunk was flushed.
        assert ready.tail_seconds is None or ready.tail_seconds >= 0
        done = await both.decode.wait(m.RemoteDone)
        assert isinstance(done, m.RemoteDone)
        source, target = both.pair.source, both.pair.target
        layout, units = source.layout, WireUnits.of(source.layout, precision)
        page, states = sent_bytes(units, 1, state=False), sent_bytes(units, 0)
        assert done.transfer.pages == len(local)
        assert done.transfer.bytes == len(local) * page + states
        if precision.exact:
            assert (page, states) == (layout.page_bytes, layout.slot_bytes)
        assert done.transfer.timeline is not None
        told = sum(chunk.bytes for chunk in done.transfer.timeline.sender.windows)
        assert told == done.transfer.bytes
        for theirs, ours in zip(granted.pages, local, strict=True):
            assert target.page_bytes(theirs) == expected_page(units, source, ours)
        assert target.slot_bytes(granted.slot) == expected_slot(units, source, slot)
        await both.prefill.wait(m.PrefillEnd)
        await both.quiet()
        assert not both.decode.of(m.HandoverFailed) and not both.decode.of(m.WriterFenced)
        assert len(both.decode.of(m.RemoteReady)) == 1
