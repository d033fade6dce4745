"""A receiver that breaks the rules of the hand-over, at a real prefill daemon: each breach is a
typed status or ends its room with a reason, and the daemon goes on, holding nothing."""

from collections.abc import Iterator
from queue import SimpleQueue

import grpc
import pytest

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.model.named_checkpoints import embedded_model
from tasuki.proto import handover_pb2
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.harness.daemons import Node, flags, fleet
from tests.harness.rogue_receiver import Rogue
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")

FAILED = grpc.StatusCode.FAILED_PRECONDITION
GARBAGE = b"\xff\xff\xff"


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    with fleet() as start:
        yield (node := start("prefill", *flags(arena_mib=16), "--transport", "nixl"))
        node.assert_at_rest()


@pytest.fixture(scope="module")
def rogue(prefill: Node) -> Iterator[Rogue]:
    config = EngineConfig(model=str(embedded_model()), dtype="float32", arena_mib=16)
    rogue = Rogue(prefill, build_parts(config).layout)
    yield rogue
    rogue.close()


def test_transport_metadata_that_cannot_be_read_is_refused(rogue: Rogue, prefill: Node) -> None:
    head, _, blob = rogue.metadata.partition(b"\n")
    broken = [b"", b"{}", b"[]", b"null", GARBAGE, head, head + b"\n" + blob[: len(blob) // 2]]
    for metadata in [*broken, head + b"\n" + GARBAGE]:
        with pytest.raises(grpc.RpcError) as caught:
            rogue.connect(metadata)
        assert caught.value.code() is FAILED and "transport: " in caught.value.details()
    with pytest.raises(grpc.RpcError) as caught:
        rogue.connect(rogue.metadata, slabs=2**40)
    assert caught.value.code() is FAILED and "slabs" in caught.value.details()
    prefill.assert_at_rest()


def test_a_room_of_an_unknown_connection_or_without_reserve_is_refused(
    rogue: Rogue, prefill: Node
) -> None:
    stranger = handover_pb2.ReceiverBatch(connection_id="nobody", messages=[rogue.reserve()])
    for firsts in ([stranger], [handover_pb2.ReceiverBatch()], []):
        with pytest.raises(grpc.RpcError) as caught:
            list(rogue.stub.Transfer(iter(firsts), timeout=HANG_SECONDS))
        assert caught.value.code() is FAILED and "connection_id" in caught.value.details()
    grant = handover_pb2.ReceiverMessage(grant=handover_pb2.Grant())
    abort = handover_pb2.ReceiverMessage(abort=handover_pb2.Abort(generation=1))
    empty = handover_pb2.ReceiverMessage()
    # They may have crossed the end of a room, and say nothing of any.
    unknown = rogue.batch(grant, abort, empty)
    assert not list(rogue.stub.Transfer(iter([unknown]), timeout=HANG_SECONDS))
    with pytest.raises(grpc.RpcError) as caught:
        rogue.stub.Abort(
            handover_pb2.AbortRequest(room=99, connection_id="nobody"), timeout=HANG_SECONDS
        )
    assert caught.value.code() is FAILED and "connection_id" in caught.value.details()
    prefill.assert_at_rest()


@pytest.mark.parametrize(
    ("grant", "part"),
    [
        ({"pages": [0, 1, 2], "slot": 2**40}, "slot"),
        ({"pages": [0, 1, 2**40], "slot": 3}, "page"),
        ({"pages": [0, 1], "slot": 3}, "page"),
        ({"pages": [], "slot": 3}, "page"),
        ({"pages": [0, 1, 2], "slot": 3, "first_page": 1000}, "page"),
        ({"pages": [0, 1, 2], "slot": 3, "generation": 8}, "generation 8"),
    ],
    ids=["slot", "page", "too few", "none", "far", "generation"],
)
def test_a_grant_that_cannot_be_written_ends_the_room(
    rogue: Rogue, prefill: Node, grant: dict[str, object], part: str
) -> None:
    answer = handover_pb2.Grant(**{"generation": 7, **grant})
    told = talk(rogue, rogue.reserve(), handover_pb2.ReceiverMessage(grant=answer))
    last = told[-1]
    assert last.WhichOneof("message") == "failed" and part in last.failed.reason, told
    assert last.failed.drain == handover_pb2.DRAIN_DRAINED
    prefill.assert_at_rest()


@pytest.mark.parametrize(
    "ticket",
    [{"marks": [0]}, {"marks": [10**9]}, {"marks": [9, 5, 5]}, {"kv_matched": 2**32 - 1}],
    ids=["mark 0", "far mark", "marks in disorder", "more KV than prompt"],
)
def test_a_ticket_that_makes_no_sense_harms_nobody(
    rogue: Rogue, prefill: Node, ticket: dict[str, object]
) -> None:
    grant = handover_pb2.Grant(generation=7, pages=[0, 1, 2], slot=3)
    for reserve in (rogue.reserve(**ticket), rogue.reserve()):
        told = talk(rogue, reserve, handover_pb2.ReceiverMessage(grant=grant))
    assert told[-1].WhichOneof("message") == "done"
    prefill.assert_at_rest()


def test_a_receiver_that_hangs_up_in_its_room_holds_nothing(rogue: Rogue, prefill: Node) -> None:
    for garbage in (b"", GARBAGE):
        with grpc.insecure_channel(prefill.address) as channel:
            transfer = channel.stream_stream("/tasuki.handover.v1.Handover/Transfer")
            messages: SimpleQueue[bytes | None] = SimpleQueue()
            messages.put(rogue.batch(rogue.reserve()).SerializeToString())
            call = transfer(iter(messages.get, None))
            until(lambda: prefill.requests("AwaitingGrant") == 1, prefill.story)
            if garbage:
                messages.put(garbage)
                batches = [handover_pb2.SenderBatch.FromString(data) for data in call]
                told = [message for batch in batches for message in batch.messages]
                failed = [message.failed for message in told if message.HasField("failed")]
                assert ["not the expected message" in each.reason for each in failed] == [True]
            else:
                call.cancel()
            messages.put(None)
        prefill.assert_at_rest()


def talk(
    rogue: Rogue, reserve: handover_pb2.ReceiverMessage, grant: handover_pb2.ReceiverMessage
) -> list[handover_pb2.SenderMessage]:
    """All that the sender says in a room that is reserved and granted."""
    told: list[handover_pb2.SenderMessage] = []

    def requests() -> Iterator[handover_pb2.ReceiverMessage]:
        yield reserve
        until(lambda: any(m.WhichOneof("message") in ("accepted", "refused") for m in told), "deaf")
        yield grant
        until(lambda: rogue.is_over(told), "no end")

    try:
        for message in rogue.rooms(requests()):
            told.append(message)
    except grpc.RpcError as error:
        raise AssertionError(f"{error.code()} {error.details()} after {told}") from error
    # Nothing but that it is over is said after the end.
    assert told[-1] == handover_pb2.SenderMessage(
        closed=handover_pb2.Closed(), room=reserve.reserve.ticket.room
    )
    return told[:-1]


def test_many_rooms_of_one_batch_go_their_own_ways(rogue: Rogue, prefill: Node) -> None:
    """One is refused, one makes no sense and one is done: a batch is only an envelope."""
    sound, odd, refused = rogue.reserve(), rogue.reserve(), rogue.reserve(generation=2**63)
    told: list[handover_pb2.SenderMessage] = []
    rooms = [message.room for message in (sound, odd, refused)]

    def heard(room: int, *kinds: str) -> bool:
        return any(m.room == room and m.WhichOneof("message") in kinds for m in told)

    def batches() -> Iterator[handover_pb2.ReceiverBatch]:
        yield rogue.batch(sound, odd, refused)
        until(lambda: all(heard(room, "accepted") for room in rooms[:2]), "deaf")
        grants = [
            handover_pb2.Grant(generation=7, pages=pages, slot=3)
            for pages in ([0, 1, 2], [0, 1, 2**40])
        ]
        yield rogue.batch(
            *(
                handover_pb2.ReceiverMessage(grant=grant, room=room)
                for grant, room in zip(grants, rooms, strict=False)
            ),
            handover_pb2.ReceiverMessage(abort=handover_pb2.Abort(generation=7), room=10**6),
        )
        until(lambda: rogue.is_over(told) and all(heard(room, "closed") for room in rooms), "open")

    for batch in rogue.stub.Transfer(batches(), timeout=HANG_SECONDS):
        told += batch.messages
    kinds = {
        room: [m.WhichOneof("message") for m in told if m.room == room and not m.HasField("queued")]
        for room in rooms
    }
    assert kinds == {
        rooms[0]: ["accepted", "ready", "done", "closed"],
        rooms[1]: ["accepted", "failed", "closed"],
        rooms[2]: ["closed"],
    }
    (why,) = [m.closed.reason for m in told if m.room == rooms[2]]
    assert "ticket.generation" in why
    prefill.assert_at_rest()
