"""Messages of many transfers share batches: in order, bounded, and without a wait if no other batch
is being sent."""

import asyncio

import pytest

from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.control import outbox
from tasuki.transfer.control.outbox import MOST_BYTES, MOST_MESSAGES, Outbox


def queued(position: int) -> pb.SenderMessage:
    return pb.SenderMessage(queued=pb.Queued(position=position), room=1)


def reserve(size: int) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(reserve=pb.Reserve(prompt=bytes(size)))


async def test_what_has_gathered_leaves_at_once_and_in_order() -> None:
    said: Outbox[pb.SenderMessage] = Outbox()
    taking = asyncio.ensure_future(said.take())
    await asyncio.sleep(0)
    for position in range(MOST_MESSAGES + 10):
        said.put(queued(position))
    # An awaited message leaves with the others of the same turn of the loop.
    batches = [await taking, await said.take()]
    assert [len(batch) for batch in batches] == [MOST_MESSAGES, 10]
    positions = [message.queued.position for batch in batches for message in batch]
    assert positions == list(range(MOST_MESSAGES + 10))


async def test_a_batch_is_bounded_in_bytes_by_its_last_message() -> None:
    said: Outbox[pb.ReceiverMessage] = Outbox()
    for size in (MOST_BYTES // 2, MOST_BYTES // 3, MOST_BYTES, 4 * MOST_BYTES, 10):
        said.put(reserve(size))
    batches = [await said.take() for _ in range(3)]
    assert [len(batch) for batch in batches] == [3, 1, 1]
    for batch in batches:
        assert sum(message.ByteSize() for message in batch[:-1]) <= MOST_BYTES


async def test_a_closed_outbox_gives_what_it_has_and_takes_no_more() -> None:
    said: Outbox[pb.SenderMessage] = Outbox()
    said.put(queued(1))
    said.close()
    said.put(queued(2))
    assert await said.take() == [queued(1)] and await said.take() == []


async def test_a_process_that_is_to_fail_says_one_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All messages before a failpoint are then sent."""
    monkeypatch.setattr(outbox, "_AT_ONCE", 1)
    said: Outbox[pb.SenderMessage] = Outbox()
    for position in range(3):
        said.put(queued(position))
    assert [len(await said.take()) for _ in range(3)] == [1, 1, 1]
