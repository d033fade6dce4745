"""What a node does not serve is refused with the mend."""

from collections.abc import Iterator

import grpc
import pytest

from tasuki.client.errors import ClientError, RetryPolicy
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.errors import RETRY_KEY
from tests.harness import http_calls
from tests.harness.daemons import Node, flags
from tests.harness.grpc_fixtures import running_front
from tests.harness.refusals import refusal
from tests.harness.running_nodes import HTTP, require_nixl, running
from tests.harness.waiting import HANG_SECONDS

ONCE = RetryPolicy(attempts=1)


@pytest.fixture(scope="module")
def prefill() -> Iterator[Node]:
    require_nixl()
    with running(Node("prefill", *flags(), *HTTP)) as node:
        yield node


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
        refused = refusal(generate, b"", timeout=HANG_SECONDS)
        assert "start this node with --gateway" in refused.message
        assert refused.trailing[RETRY_KEY] == "elsewhere"
        foreign = channel.unary_unary("/somebody.else.Service/Ask")
        unknown = refusal(foreign, b"", timeout=HANG_SECONDS)
        assert unknown.typed == (grpc.StatusCode.UNIMPLEMENTED, "")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/tokenize"])
def test_openai_s_paths_of_a_prefill_node_name_the_mend(prefill: Node, path: str) -> None:
    reply = http_calls.ask(prefill.http_address, "POST", path, {})
    assert reply.refusal == (501, "not_served_here")
    assert "clients ask decode nodes" in reply.error["message"]


def test_who_bears_no_key_is_not_told_what_a_node_serves() -> None:
    config = ServerConfig(api_key="secret")
    with running_front(config=config, services=lambda client: []) as front:
        assert refusal(front.calls.abort, "r").status is grpc.StatusCode.UNAUTHENTICATED
        told = refusal(front.bearing("secret").abort, "r").message
        assert "clients ask decode nodes" in told
