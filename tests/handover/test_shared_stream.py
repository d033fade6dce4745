"""Transfers of one connection share a stream and its messages, and nothing else."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from tasuki.decode_node.prefill_connection import TransferStream
from tasuki.engine import messages as m
from tasuki.transfer.control.outbox import Outbox, Said
from tests.harness.handover_nodes import SERVICE_LIMITS, Nodes, nodes, wanted
from tests.harness.waiting import HANG_SECONDS

TRANSFER_IDS = tuple(m.TransferId(number) for number in range(1, 8))


class Counted:
    def __init__(self) -> None:
        self.calls = 0
        self.batches: list[list[str]] = []
        """The kinds of the messages in each batch."""

    def sizes(self, kind: str) -> list[int]:
        """Return the number of messages of a kind in each batch with at least one."""
        return [batch.count(kind) for batch in self.batches if kind in batch]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    found = Counted()
    carry, take = TransferStream._carry, Outbox.take

    async def counted_carry(self: TransferStream, call: object) -> str:
        found.calls += 1
        return await carry(self, call)  # type: ignore[arg-type]

    async def counted_take(self: Outbox[Said]) -> list[Said]:
        batch = await take(self)
        found.batches.append([each.WhichOneof("message") for each in batch])  # type: ignore[attr-defined]
        return batch

    monkeypatch.setattr(TransferStream, "_carry", counted_carry)
    monkeypatch.setattr(Outbox, "take", counted_take)
    yield found


async def reserved(both: Nodes) -> None:
    """Wait until all transfers are in the prefill engine's queue."""
    await both.connected()
    for transfer_id in TRANSFER_IDS:
        both.client.deliver(wanted(transfer_id))
    for transfer_id in TRANSFER_IDS:
        await both.prefill.wait(m.PrefillReserve, transfer_id)


async def test_rooms_share_a_call_and_its_messages(counted: Counted) -> None:
    # On a busy machine each would repeat its place meanwhile, in a message of its own.
    unrepeated = replace(SERVICE_LIMITS, progress_seconds=HANG_SECONDS)
    async with nodes(service_limits=unrepeated) as both:
        await reserved(both)
        # They are requested in one turn of the loop, as the messages of an engine's step are.
        both.service.deliver(m.PrefillQueue(TRANSFER_IDS))
        for transfer_id in TRANSFER_IDS:
            both.service.deliver(m.PrefillAccepted(transfer_id))
        for transfer_id in TRANSFER_IDS:
            await both.decode.wait(m.GrantWanted, transfer_id)
        for transfer_id in TRANSFER_IDS:
            await both.hand_over(transfer_id)
        for transfer_id in TRANSFER_IDS:
            await both.decode.wait(m.RemoteDone, transfer_id)
        await both.quiet()
    assert counted.calls == 1
    for kind in ("reserve", "queued", "accepted"):
        assert sum(counted.sizes(kind)) >= len(TRANSFER_IDS)
        assert len(counted.sizes(kind)) < len(TRANSFER_IDS), counted.batches


async def test_a_room_that_leaves_takes_no_other_along(counted: Counted) -> None:
    async with nodes() as both:
        await reserved(both)
        gone, *others = TRANSFER_IDS
        await both.grant(gone)
        both.client.deliver(m.HandoverCancelled(gone))
        await both.decode.wait(m.WriterFenced, gone)
        await both.prefill.wait(m.PrefillEnd, gone)
        for transfer_id in others:
            await both.hand_over(transfer_id)
            await both.decode.wait(m.RemoteDone, transfer_id)
        await both.quiet()
        assert not both.decode.of(m.HandoverFailed)
    assert counted.calls == 1


async def test_a_stream_that_breaks_loses_its_rooms_once_and_the_next_one_has_another(
    counted: Counted,
) -> None:
    async with nodes() as both:
        await reserved(both)
        connection = both.client.links[0].connection
        assert connection is not None
        await both.grant(TRANSFER_IDS[0])
        connection.stream().end("cut by the test")
        for transfer_id in TRANSFER_IDS:
            await both.decode.wait(m.HandoverFailed, transfer_id)
            await both.prefill.wait(m.PrefillEnd, transfer_id)
        await both.decode.wait(m.WriterFenced, TRANSFER_IDS[0])
        await both.quiet()
        assert len(both.decode.of(m.HandoverFailed)) == len(TRANSFER_IDS)
        assert len(both.decode.of(m.WriterFenced)) == 1, "only what was granted is fenced"
        # The connection is still open.
        again = m.TransferId(9)
        await both.hand_over(again)
        await both.decode.wait(m.RemoteDone, again)
        assert both.client.links[0].connection is connection
    assert counted.calls == 2
