"""The number of round trips of a transfer on the control connection, counted at a real gRPC server.

A prefill and a decode node's halves talk over gRPC as always; only the engines are replaced by
scripts.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Any

import grpc
import numpy as np
import torch

from tasuki.bench.measure.report import Row
from tasuki.decode_node.handover_client import HandoverClient
from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.prefill_node.handover_service import HandoverService
from tasuki.proto import handover_pb2_grpc
from tasuki.pycache.keys import Keys
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import Heads, LayerCache, Part, Whole
from tasuki.server.discovery.membership import FixedMembership
from tasuki.transfer.chunks.chunk import FinishedLayers, StepCounter
from tasuki.transfer.data_plane import DataPlane, TransferEngine
from tasuki.transfer.transports.loopback import LoopbackFabric, LoopbackTransport

ROUND_TRIPS = 2
_REQUESTS = 20
_SLABS = 8
_LEASE_SECONDS = 2.0
_OF_A_CONNECTION = {"Heartbeat", "Usable"}
"""Calls of a connection not made for any single transfer."""
_LAYOUT = CacheLayout(
    (
        LayerCache(
            "state",
            slot=(
                Part("window", (24, 3), "float32", Whole()),
                Part("matrix", (2, 16, 16), "float32", Heads(2)),
            ),
        ),
        LayerCache("pages", page=(Part("kv", (1, 2, 64, 8), "float32", Heads(1)),)),
    )
)
_HIT = m.HitBreakdown(64, 0, 0, {"new": 64}, None)


class MessageCount(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """A count of the decode nodes' messages, by call. Answers to the prefill node's messages start
    no round trip."""

    def __init__(self) -> None:
        self.by_call: Counter[str] = Counter()

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]],
        details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(details)
        name = details.method.rpartition("/")[2]
        if handler.stream_stream is None:
            self.by_call[name] += 1
            return handler
        inner = handler.stream_stream

        async def counted(messages: AsyncIterator[Any], context: Any) -> None:
            await inner(self._each(name, messages), context)

        return grpc.stream_stream_rpc_method_handler(
            counted, handler.request_deserializer, handler.response_serializer
        )

    async def _each(self, name: str, messages: AsyncIterator[Any]) -> AsyncIterator[Any]:
        async for message in messages:
            self.by_call[name] += 1
            yield message


def control_rows() -> Iterator[Row | str]:
    seconds, trips = asyncio.run(_hand_overs())
    yield Row(
        "control connection: a hand-over of one page, from wanted to done",
        seconds,
        target=f"<= {ROUND_TRIPS} round trips a request",
        met=trips <= ROUND_TRIPS,
        extra={"round trips": trips, "requests": _REQUESTS},
    )


def _plane(fabric: LoopbackFabric, name: str) -> DataPlane:
    memory = torch.zeros(_SLABS * _LAYOUT.slab_bytes, dtype=torch.uint8)
    transport = LoopbackTransport(fabric, name)
    return DataPlane.over(memory, _LAYOUT, "random", transport, "loopback", name)


async def _hand_overs() -> tuple[float, float]:
    """Return the seconds of a transfer and its round trips on the control connection."""
    loop = asyncio.get_running_loop()
    fabric = LoopbackFabric()
    source, target = _plane(fabric, "source"), _plane(fabric, "target")
    steps = StepCounter()
    there = TransferEngine.over(source, steps, 1, _LEASE_SECONDS)
    here = TransferEngine.over(target, StepCounter(), 1, _LEASE_SECONDS)
    over: asyncio.Queue[m.Inbox] = asyncio.Queue()

    def prefill_engine(message: m.Inbox) -> None:
        match message:
            case m.PrefillReserve(transfer_request=transfer_request):
                service.deliver(m.PrefillQueue((transfer_request.transfer_id,)))
                service.deliver(m.PrefillAccepted(transfer_request.transfer_id))
            case m.PrefillStart(grant=grant):
                there.sender.plan_forward(
                    grant.transfer_id, FinishedLayers(steps.value, 0, (0,), 1)
                )
                for _ in _LAYOUT.layers:
                    steps.tick()
                service.deliver(m.PrefillToken(grant.transfer_id, 1, 0.0, 1.0, _HIT))

    def decode_engine(message: m.Inbox) -> None:
        match message:
            case m.GrantWanted(transfer_id):
                page = _LAYOUT.blocks_per_slab
                client.deliver(m.HandoverGranted(m.Grant(transfer_id, 1, 0, (page,), 0)))
            case m.RemoteDone() | m.HandoverFailed():
                over.put_nowait(message)

    service = HandoverService(
        prefill_engine,
        *(there.sender, there.receiver, source.transport, source.contract, source.node, loop),
    )
    counts = MessageCount()
    server = grpc.aio.server(interceptors=[counts])
    handover_pb2_grpc.add_HandoverServicer_to_server(service, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    membership = FixedMembership([f"127.0.0.1:{port}"])
    client = HandoverClient(
        decode_engine,
        *(here.receiver, here.sender, target.transport, target.contract, target.node),
        *(membership, loop),
    )
    there.start()
    here.start()
    try:
        await client.start()
        counts.by_call.clear()
        start = loop.time()
        for number in range(1, 1 + _REQUESTS):
            await _hand_over_one(client, over, number)
        seconds = (loop.time() - start) / _REQUESTS
        messages = sum(counts.by_call[call] for call in counts.by_call.keys() - _OF_A_CONNECTION)
    finally:
        await client.stop()
        await service.stop()
        await server.stop(0)
        there.stop()
        here.stop()
    return seconds, messages / _REQUESTS


async def _hand_over_one(
    client: HandoverClient, over: "asyncio.Queue[m.Inbox]", number: int
) -> None:
    sampling = SamplingParams(max_new_tokens=2)
    transfer_request = m.TransferRequest(m.TransferId(number), 1, 0, sampling, b"")
    request = m.RequestId(f"bench-{number}")
    keys = Keys(np.arange(64, dtype=np.int32))
    client.deliver(m.HandoverWanted(request, transfer_request, keys))
    end = await asyncio.wait_for(over.get(), 10)
    if not isinstance(end, m.RemoteDone):
        raise RuntimeError(f"a hand-over of the bench was lost: {end}")
