"""What a node does not serve is refused with the mend."""

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import Iterator

import grpc
import pytest
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.retry import RetryPolicy
from tasuki.client.session import Client
from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.server.auth.access import Access
from tasuki.server.grpc.server import start_server
from tasuki.transfer.transports.nixl.transport import installed_package

from tests.harness.daemons import Node, flags

ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    if installed_package() is None:
        pytest.skip("NIXL is not installed")
    node = Node("prefill", *flags(), "--http-bind", "127.0.0.1:0").wait_ready()
    yield node
    assert node.stop() == 0


def test_a_client_of_a_prefill_node_is_told_whom_to_ask(prefill: Node) -> None:
    with Client(prefill.address, retry=ONCE) as client:
        for ask in (
            lambda: client.generate(Prompt(token_ids=[1, 2])).result(),
            lambda: client.open_session(),
        ):
            with pytest.raises(ClientError, match="clients ask decode nodes") as refused:
                ask()
            assert refused.value.status is grpc.StatusCode.UNIMPLEMENTED
            assert refused.value.kind == "not_served_here"
        assert client.stats().role == pb.NODE_ROLE_PREFILL


def test_a_gateway_of_a_node_without_the_flag_is_told_of_it(prefill: Node) -> None:
    with grpc.insecure_channel(prefill.address) as channel:
        generate = channel.unary_stream("/tokenspeed.grpc.scheduler.TokenSpeedScheduler/Generate")
        with pytest.raises(grpc.RpcError, match="start this node with --gateway") as refused:
            list(generate(b"", timeout=5))
        assert dict(refused.value.trailing_metadata())["tasuki-retry"] == "elsewhere"
        with pytest.raises(grpc.RpcError) as foreign:
            channel.unary_unary("/somebody.else.Service/Ask")(b"", timeout=5)
        assert foreign.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "tasuki-error-kind" not in dict(foreign.value.trailing_metadata())


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize"])
def test_openai_s_paths_of_a_prefill_node_name_the_mend(prefill: Node, path: str) -> None:
    request = urllib.request.Request(f"http://{prefill.http_address}{path}", b"{}")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=10)
    assert refused.value.code == 501
    error = json.load(refused.value)["error"]
    assert error["code"] == "not_served_here" and "clients ask decode nodes" in error["message"]


def test_who_bears_no_key_is_not_told_what_a_node_serves() -> None:
    async def ask() -> None:
        server = await start_server("127.0.0.1:0", [], Access(api_key="secret"))
        try:
            async with grpc.aio.insecure_channel(server.address) as channel:
                stub = pb_grpc.InferenceStub(channel)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    await stub.Abort(pb.AbortRequest(request_id="r"))
                assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED
                key = (("authorization", "Bearer secret"),)
                with pytest.raises(grpc.aio.AioRpcError, match="clients ask decode nodes"):
                    await stub.Abort(pb.AbortRequest(request_id="r"), metadata=key)
        finally:
            await server.drain(0)

    asyncio.run(ask())
