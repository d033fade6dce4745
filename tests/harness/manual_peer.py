"""A decode node driven by hand, for breaking the rules of the transfer protocol."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import grpc
from google.protobuf import text_format

from tasuki.engine.messages import transfer_proto as wire
from tasuki.proto import handover_pb2 as pb
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.node_identity import NodeIdentity
from tasuki.transfer.protocol.contract import Contract
from tasuki.transfer.protocol.messages import node_to_wire
from tasuki.transfer.transports.loopback import LoopbackTransport
from tests.harness.handover_nodes import GENERATION, Nodes, wanted
from tests.harness.waiting import HANG_SECONDS


class ManualPeer:
    """A hand-driven peer of the prefill node. It acts in the name of the decode node's connection
    (`of` is `decode`), of a connection of its own (`stranger`), or of any name. Messages are in
    protobuf's text format."""

    def __init__(self, both: Nodes, stack: AsyncExitStack) -> None:
        self.answers: list[str] = []
        """The prefill node's answers except Queued, the ends of calls, and the reasons of closed
        transfers."""
        self._both = both
        self._stack = stack
        self._own = ""
        self._call: Any = None
        self._transfer_id = 0
        """Id of the transfer named by the last written message."""

    async def _stub(self) -> Any:
        address = f"127.0.0.1:{self._both.port}"
        channel = await self._stack.enter_async_context(grpc.aio.insecure_channel(address))
        return handover_pb2_grpc.HandoverStub(channel)

    def connection_of(self, of: str) -> str:
        """Return a connection id. `of`: `decode`, `stranger`, or a name; EPOCH in a name is
        replaced by the prefill node's epoch."""
        connection = self._both.client.links[0].connection
        assert connection is not None
        own = connection.id
        known = {"decode": own, "stranger": self._own}
        return known.get(of, of.replace("EPOCH", own.split("-")[0]))

    async def connect(self) -> None:
        """Connect this peer as another decode node, the stranger."""
        target = self._both.pair.target
        transport = LoopbackTransport(self._both.pair.fabric, "stranger")
        transport.register(target.memory.ctypes.data, target.memory.size)
        node = NodeIdentity.new("stranger", "loopback", transport.metadata(), target.slabs)
        request = pb.ConnectRequest(
            node=node_to_wire(node),
            contract=Contract("weights", target.layout).flat(),
            lease_seconds=1.0,
        )
        answer = await (await self._stub()).Connect(request, timeout=HANG_SECONDS)
        assert answer.WhichOneof("result") == "connected", answer
        self._own = answer.connected.connection_id

    async def abort(self, number: str, of: str = "decode") -> None:
        request = pb.AbortRequest(
            room=int(number), generation=GENERATION, connection_id=self.connection_of(of)
        )
        try:
            answer = await (await self._stub()).Abort(request, timeout=HANG_SECONDS)
            self.answers.append(pb.Drain.Name(answer.drain))
        except grpc.aio.AioRpcError as error:
            self.answers.append(f"{error.code().name}({error.details()})")

    async def transfer(self, number: str, change: str = "", of: str = "decode") -> None:
        """Open a transfer by sending Reserve. change: fields of the message to replace, as text.
        `of`: connection to name."""
        reserve = wire.reserve(wanted(int(number)), "")
        text_format.Merge(change, reserve)
        self._transfer_id = reserve.room or reserve.reserve.ticket.room
        await self._open("Transfer")
        await self._write(reserve, self.connection_of(of))

    async def transfer_with(self, message: str) -> None:
        """Open a transfer with `message` instead of Reserve."""
        await self._open("Transfer")
        await self.write(message)

    async def batch(self, number: str, count: str) -> None:
        """Send `count` grants of a transfer in one batch, on the open stream."""
        grants = [pb.ReceiverMessage(grant=pb.Grant(), room=int(number))] * int(count)
        await self._call.write(pb.ReceiverBatch(messages=grants))

    async def silent(self, call: str) -> None:
        """Open a gRPC call and write nothing to it."""
        await self._open(call)

    async def write(self, message: str) -> None:
        parsed = text_format.Parse(message, pb.ReceiverMessage())
        await self._write(parsed, self.connection_of("decode"))

    async def _write(self, message: pb.ReceiverMessage, connection: str) -> None:
        message.room = self._transfer_id
        await self._call.write(pb.ReceiverBatch(connection_id=connection, messages=[message]))

    async def _open(self, call: str) -> None:
        self._call = getattr(await self._stub(), call)()
        listening = asyncio.ensure_future(self._listen(self._call))
        self._stack.callback(listening.cancel)

    async def _listen(self, call: Any) -> None:
        try:
            while (batch := await call.read()) is not grpc.aio.EOF:
                for message in getattr(batch, "messages", ()):
                    self._hear(message)
        except grpc.aio.AioRpcError as error:
            self.answers.append(f"{error.code().name}({error.details()})")

    def _hear(self, message: pb.SenderMessage) -> None:
        match message.WhichOneof("message"):
            case "failed":
                drain = pb.Drain.Name(message.failed.drain)
                self.answers.append(f"failed({drain}: {message.failed.reason})")
            case "closed":
                if message.closed.reason:
                    self.answers.append(f"closed({message.closed.reason})")
            case "queued":
                pass
            case kind:
                self.answers.append(str(kind))
