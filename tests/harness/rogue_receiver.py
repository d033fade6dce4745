"""A decode node driven by hand, transferring with a real prefill daemon over NIXL."""

import secrets
from collections.abc import Iterable, Iterator, Mapping
from queue import SimpleQueue
from threading import Event, Thread
from typing import Any

import grpc
import numpy as np

from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.pycache.layout import CacheLayout
from tasuki.transfer.node_identity import EPOCH_BYTES, metadata_checksum
from tasuki.transfer.transports.nixl.transport import NixlTransport
from tests.harness.daemons import Node, random_prompt
from tests.harness.waiting import HANG_SECONDS

SLABS = 4
ENDS = ("done", "failed", "refused", "aborted", "closed")


def contract_of(stub: Any) -> dict[str, str]:
    """Return a prefill node's contract, read from its rejection: it names every field and its
    value."""
    refused = stub.Connect(pb.ConnectRequest(), timeout=HANG_SECONDS).refused
    contract = {item.field: item.ours for item in refused.differences}
    del contract["transport"]
    return contract


def node_of(metadata: bytes, slabs: int = 0) -> pb.Node:
    """Return a node identity with its own epoch, as if a separate process, because a new connection
    ends the earlier ones of its process."""
    return pb.Node(
        name="rogue",
        epoch=secrets.token_bytes(EPOCH_BYTES),
        transport="nixl",
        transport_metadata=metadata,
        transport_checksum=metadata_checksum(metadata),
        slabs=slabs,
    )


class Rogue:
    """A decode node talking to a prefill node by hand, with an arena of SLABS slabs."""

    def __init__(self, prefill: Node, layout: CacheLayout) -> None:
        self._memory = np.zeros(SLABS * layout.slab_bytes, dtype=np.uint8)
        self._transport = NixlTransport("rogue")
        self._transport.register(self._memory.ctypes.data, self._memory.size)
        self.metadata = self._transport.metadata()
        self._channel = grpc.insecure_channel(prefill.address)
        self.stub = handover_pb2_grpc.HandoverStub(self._channel)
        self.contract = contract_of(self.stub)
        self._transfers = 0
        self._connection = self.connect(self.metadata).connected.connection_id
        self._answers: SimpleQueue[pb.Renewal | None] = SimpleQueue()
        # Before the thread begins: a rogue may be closed as soon as it is made.
        self._heart = self.stub.Heartbeat(iter(self._answers.get, None))
        self._beating = Thread(target=self._beat)
        self._beating.start()

    def _beat(self) -> None:
        """Answer the prefill node's heartbeats, as a receiver must to stay connected."""
        answers = self._answers
        answers.put(pb.Renewal(connection_id=self._connection))
        try:
            for beat in self._heart:
                answers.put(pb.Renewal(sequence=beat.sequence))
        except grpc.RpcError as error:
            assert error.code() is grpc.StatusCode.CANCELLED
        finally:
            answers.put(None)

    def connect(
        self, metadata: bytes, slabs: int = SLABS, pictures: Mapping[str, str] | None = None
    ) -> pb.ConnectResponse:
        """Connect anew. pictures: the contract about them; None: of a node without a tower."""
        node = node_of(metadata, slabs)
        request = pb.ConnectRequest(node=node, contract=self.contract, pictures=pictures)
        return self.stub.Connect(request, timeout=HANG_SECONDS)

    def reserve(self, **transfer_request: object) -> pb.ReceiverMessage:
        self._transfers += 1
        reserve = pb.Reserve(
            ticket=pb.Ticket(
                **{
                    "room": self._transfers,
                    "generation": 7,
                    "sampling": pb.Sampling(max_new_tokens=1, top_p=1.0, repetition_penalty=1.0),
                    # Salted, so that nothing comes from the cache.
                    "salt": str(self._transfers).encode(),
                    **transfer_request,
                }
            ),
            prompt=np.array(random_prompt(130, 0), dtype="<i4").tobytes(),
        )
        return pb.ReceiverMessage(reserve=reserve, room=reserve.ticket.room)

    def fetch(
        self, tokens: bytes, salt: bytes, transfer_id: int | None = None, generation: int = 7
    ) -> pb.ReceiverMessage:
        """Return a fetch message. tokens, salt: the requested prefix. transfer_id: None for a new
        transfer."""
        if transfer_id is None:
            self._transfers += 1
            transfer_id = self._transfers
        fetch = pb.Fetch(generation=generation, tokens=tokens, salt=salt)
        return pb.ReceiverMessage(fetch=fetch, room=transfer_id)

    def batch(self, *messages: pb.ReceiverMessage) -> pb.ReceiverBatch:
        return pb.ReceiverBatch(connection_id=self._connection, messages=messages)

    def transfers(
        self, messages: Iterable[pb.ReceiverMessage], seconds: float = HANG_SECONDS
    ) -> Iterator[pb.SenderMessage]:
        """Send messages of transfers on a separate stream. Returns the sender's messages, up to
        Closed."""
        closed = Event()

        def batches() -> Iterator[pb.ReceiverBatch]:
            transfer_id = 0
            for message in messages:
                transfer_id = message.room or transfer_id
                sent = pb.ReceiverMessage(room=transfer_id)
                # A copy, because the caller may send the message in other transfers too.
                sent.MergeFrom(message)
                yield self.batch(sent)
            closed.wait(seconds)

        for batch in self.stub.Transfer(batches(), timeout=seconds):
            for message in batch.messages:
                if message.WhichOneof("message") == "closed":
                    closed.set()
                yield message

    def arrive(self) -> None:
        """Poll the transport, because written bytes arrive only while their receiver polls."""
        self._transport.notifications()

    def is_over(self, told: list[pb.SenderMessage]) -> bool:
        """Return True if the last of the messages ended the transfer. Polls the transport."""
        self.arrive()
        return told[-1].WhichOneof("message") in ENDS

    def send_pieces(self, pieces: Iterable[pb.PicturePiece]) -> grpc.RpcError | None:
        """Send pieces of pictures in a call of their own. The first one gets the connection. Return
        the refusal; None if they were taken."""

        def named() -> Iterator[pb.PicturePiece]:
            for number, piece in enumerate(pieces):
                if not number:
                    piece.connection_id = self._connection
                yield piece

        try:
            self.stub.Pictures(named(), timeout=HANG_SECONDS)
        except grpc.RpcError as error:
            return error
        return None

    def close(self) -> None:
        self._heart.cancel()
        self._beating.join()
        self._channel.close()
        self._transport.close()


class SeeingRogue(Rogue):
    """A Rogue whose tower and processor are the prefill node's own, by its word."""

    def connect(
        self, metadata: bytes, slabs: int = SLABS, pictures: Mapping[str, str] | None = None
    ) -> pb.ConnectResponse:
        known = super().connect(metadata, slabs).connected.pictures
        return super().connect(metadata, slabs, known if pictures is None else pictures)
