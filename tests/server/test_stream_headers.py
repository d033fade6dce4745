"""Tests of streams: each sends its headers at once, since gateways give up on streams with late
headers."""

import asyncio
from collections.abc import Callable
from typing import Any

import grpc

from tasuki.proto import handover_pb2, handover_pb2_grpc, inference_pb2, inference_pb2_grpc
from tests.harness.grpc_calls import ids
from tests.harness.grpc_fixtures import ScriptedEngine, running_front
from tests.harness.handover_nodes import nodes

SECONDS = 20.0
"""Longest wait for headers. These streams never get an answer, so headers that wait for one never
come."""

Call = Callable[[grpc.aio.Channel], Any]


def streams(module: Any) -> set[str]:
    """Return Service.Method of each method with a streamed answer."""
    return {
        f"{service.name}.{method.name}"
        for service in module.DESCRIPTOR.services_by_name.values()
        for method in service.methods
        if method.server_streaming
    }


async def come_at_once(port: int, calls: dict[str, Call]) -> None:
    """Check for the headers of each stream, although none is ever answered."""
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        for name, call in calls.items():
            stream = call(channel)
            try:
                headers = await asyncio.wait_for(stream.initial_metadata(), SECONDS)
                assert not name.endswith("Generate") or headers["tasuki-request-id"]
            except TimeoutError:
                raise AssertionError(f"{name} keeps its headers back") from None
            finally:
                stream.cancel()


def test_streams_for_clients() -> None:
    engine = ScriptedEngine(answer=lambda submit: [], hold=True)
    with running_front(engine=engine) as front:
        session = front.calls.open()
        front.calls.append(session, 5)
        calls: dict[str, Call] = {
            "Inference.Generate": lambda channel: inference_pb2_grpc.InferenceStub(
                channel
            ).Generate(inference_pb2.GenerateRequest(token_ids=ids(5))),
            "Session.Generate": lambda channel: inference_pb2_grpc.SessionStub(channel).Generate(
                inference_pb2.SessionGenerateRequest(session_id=session)
            ),
            # The scripted engine never opens a watch.
            "CacheAdmin.WatchEvents": lambda channel: inference_pb2_grpc.CacheAdminStub(
                channel
            ).WatchEvents(inference_pb2.WatchEventsRequest()),
        }
        assert set(calls) == streams(inference_pb2)
        asyncio.run(come_at_once(front.server.port, calls))


async def test_streams_between_nodes() -> None:
    calls: dict[str, Call] = {
        "Handover.Heartbeat": lambda channel: handover_pb2_grpc.HandoverStub(channel).Heartbeat(),
        "Handover.Transfer": lambda channel: handover_pb2_grpc.HandoverStub(channel).Transfer(),
        "Handover.Usable": lambda channel: handover_pb2_grpc.HandoverStub(channel).Usable(
            handover_pb2.UsableRequest()
        ),
    }
    assert set(calls) == streams(handover_pb2)

    async with nodes() as running:
        await come_at_once(running.port, calls)
