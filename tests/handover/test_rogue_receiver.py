"""A receiver that breaks the rules of the hand-over, at a real prefill daemon: each breach is a
typed status or ends its room with a reason, and the daemon goes on, holding nothing."""

from collections.abc import Iterator
from queue import SimpleQueue

import grpc
import pytest

from tasuki.cli.embedded import embedded_model
from tasuki.engine.build import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.proto import handover_pb2
from tasuki.transfer.transports.nixl.transport import installed_package
from tests.harness.daemons import Node, flags, fleet
from tests.harness.rogue_receiver import Rogue
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")

INVALID, FAILED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
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
    stranger = rogue.reserve()
    stranger.reserve.connection_id = "nobody"
    grant = handover_pb2.ReceiverMessage(grant=handover_pb2.Grant())
    abort = handover_pb2.ReceiverMessage(abort=handover_pb2.Abort(generation=1))
    empty = handover_pb2.ReceiverMessage()
    for first, status in ((stranger, FAILED), (grant, INVALID), (abort, INVALID), (empty, INVALID)):
        with pytest.raises(grpc.RpcError) as caught:
            list(rogue.stub.Transfer(iter([first]), timeout=HANG_SECONDS))
        assert caught.value.code() is status
    with pytest.raises(grpc.RpcError) as caught:
        list(rogue.stub.Transfer(iter([]), timeout=HANG_SECONDS))
    assert caught.value.code() is INVALID
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
            messages.put(rogue.reserve().SerializeToString())
            call = transfer(iter(messages.get, None))
            until(lambda: prefill.requests("AwaitingGrant") == 1, prefill.story)
            if garbage:
                messages.put(garbage)
                last = handover_pb2.SenderMessage.FromString([*call][-1])
                assert "not the expected message" in last.failed.reason, last
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
        for message in rogue.stub.Transfer(requests(), timeout=HANG_SECONDS):
            told.append(message)
    except grpc.RpcError as error:
        raise AssertionError(f"{error.code()} {error.details()} after {told}") from error
    return told
