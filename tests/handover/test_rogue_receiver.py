"""A receiver that breaks the rules of the hand-over, at a real prefill daemon: each breach is a
typed status or ends its room with a reason, and the daemon goes on, holding nothing."""

import secrets
from collections.abc import Iterator
from queue import SimpleQueue
from threading import Thread

import grpc
import numpy as np
import pytest
from tasuki.cli.embedded import embedded_model
from tasuki.engine.build import build_parts
from tasuki.engine.config import EngineConfig
from tasuki.proto import handover_pb2, handover_pb2_grpc
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.node_identity import EPOCH_BYTES, metadata_checksum
from tasuki.transfer.transports.nixl.transport import NixlTransport, installed_package

from tests.harness.daemons import Node, flags, random_prompt
from tests.harness.waiting import HANG_SECONDS, until

pytestmark = pytest.mark.skipif(installed_package() is None, reason="NIXL is not installed")

INVALID, FAILED = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.FAILED_PRECONDITION
GARBAGE = b"\xff\xff\xff"
SLABS = 4
ENDS = ("done", "failed", "refused", "aborted")


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    node = Node("prefill", *flags(arena_mib=16), "--transport", "nixl").wait_ready()
    yield node
    node.assert_at_rest()
    assert node.stop() == 0


class Rogue:
    """Speaks to a prefill node by hand, with an arena of SLABS slabs of its own."""

    def __init__(self, prefill: Node, layout: CacheLayout) -> None:
        self._memory = np.zeros(SLABS * layout.slab_bytes, dtype=np.uint8)
        self._transport = NixlTransport("rogue")
        self._transport.register(self._memory.ctypes.data, self._memory.size)
        self.metadata = self._transport.metadata()
        self._channel = grpc.insecure_channel(prefill.address)
        self.stub = handover_pb2_grpc.HandoverStub(self._channel)
        # A refusal names every field and the other side's value.
        refusal = self.stub.Connect(handover_pb2.ConnectRequest()).refused
        self.contract = {item.field: item.ours for item in refusal.differences}
        del self.contract["transport"]
        self._rooms = 0
        self._connection = self.connect(self.metadata).connected.connection_id
        self._beating = Thread(target=self._beat)
        self._beating.start()

    def _beat(self) -> None:
        """Answer beats, as a receiver must that wants to stay connected."""
        answers: SimpleQueue[handover_pb2.Renewal | None] = SimpleQueue()
        self._heart = self.stub.Heartbeat(iter(answers.get, None))
        answers.put(handover_pb2.Renewal(connection_id=self._connection))
        try:
            for beat in self._heart:
                answers.put(handover_pb2.Renewal(sequence=beat.sequence))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.CANCELLED
        finally:
            answers.put(None)

    def connect(self, metadata: bytes, slabs: int = SLABS) -> handover_pb2.ConnectResponse:
        node = handover_pb2.Node(
            name="rogue",
            # A process each: a connection ends those that its process had before.
            epoch=secrets.token_bytes(EPOCH_BYTES),
            transport="nixl",
            transport_metadata=metadata,
            transport_checksum=metadata_checksum(metadata),
            slabs=slabs,
        )
        request = handover_pb2.ConnectRequest(node=node, contract=self.contract)
        return self.stub.Connect(request, timeout=HANG_SECONDS)

    def reserve(self, **ticket: object) -> handover_pb2.ReceiverMessage:
        self._rooms += 1
        reserve = handover_pb2.Reserve(
            connection_id=self._connection,
            ticket=handover_pb2.Ticket(
                **{
                    "room": self._rooms,
                    "generation": 7,
                    "sampling": handover_pb2.Sampling(max_new_tokens=1, top_p=1.0),
                    # Salted, so that nothing comes from the cache.
                    "salt": str(self._rooms).encode(),
                    **ticket,
                }
            ),
            prompt=np.array(random_prompt(130, 0), dtype="<i4").tobytes(),
        )
        return handover_pb2.ReceiverMessage(reserve=reserve)

    def is_over(self, told: list[handover_pb2.SenderMessage]) -> bool:
        """Whether the room is over; its bytes land only while their receiver looks."""
        self._transport.notifications()
        return told[-1].WhichOneof("message") in ENDS

    def close(self) -> None:
        self._heart.cancel()
        self._beating.join()
        self._channel.close()
        self._transport.close()


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
