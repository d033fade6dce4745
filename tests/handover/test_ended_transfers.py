"""Ended transfers on a live connection are freed at once, not at a full garbage collection. Full
collections are rare on a node, so cycles of transfers would fill its memory."""

import asyncio
import gc

from tasuki.engine import messages as m
from tasuki.transfer.lifecycle.receiving import Receiving
from tasuki.transfer.lifecycle.sending import Sending
from tasuki.transfer.lifecycle.stepping import SteppedSide
from tests.harness.handover_nodes import Nodes, nodes, source_of
from tests.harness.waiting import HANG_SECONDS

DONE, PULLING, FENCED = 1, 2, 3
_OF_TRANSFERS = (SteppedSide, Receiving, Sending)


async def lives(both: Nodes) -> None:
    """Run a transfer that completes, one after a pull, and one cancelled by the decode node."""
    await both.hand_over(DONE)
    await both.pull(PULLING)
    both.client.deliver(m.PullPinned(source_of(PULLING, both.pair.target.layout)))
    await both.prefill.wait(m.PullCommitted, PULLING)
    await both.hand_over(PULLING)
    await both.grant(FENCED)
    both.client.deliver(m.HandoverCancelled(m.TransferId(FENCED)))
    await both.decode.wait(m.RemoteDone, DONE)
    await both.decode.wait(m.RemoteDone, PULLING)
    await both.decode.wait(m.WriterFenced, FENCED)


def test_nothing_holds_a_room_that_has_ended() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await lives(both)
            await both.quiet()
            async with asyncio.timeout(HANG_SECONDS):
                # With type(), because isinstance() asks each object for its class, and some warn.
                while any(issubclass(type(one), _OF_TRANSFERS) for one in gc.get_objects()):
                    await asyncio.sleep(0.05)

    gc.collect()
    gc.disable()
    try:
        asyncio.run(asyncio.wait_for(scenario(), 2 * HANG_SECONDS))
    finally:
        gc.enable()
