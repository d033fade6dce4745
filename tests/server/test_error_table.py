"""Tests of the error table. The code writes the page's table, callers get the table's errors, and a
refusal of an unserved feature names the fix."""

import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from scripts.docs.error_table import rows
from tasuki.cli.role import change_role
from tasuki.client.channel import open_channel
from tasuki.client.errors import ClientError, RetryPolicy, is_transient
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.errors import RETRY_KEY, Retry
from tests.harness import http_calls
from tests.harness.daemons import Node, flags
from tests.harness.grpc_fixtures import running_front
from tests.harness.programs import output_of
from tests.harness.refusals import refusal, refused_as
from tests.harness.running_nodes import HTTP, require_nixl, running
from tests.harness.waiting import HANG_SECONDS

PAGE = Path(__file__).parents[2] / "docs" / "errors.md"


def test_the_page_s_table_is_written_by_the_code() -> None:
    command = [sys.executable, "-m", "scripts.docs.error_table"]
    assert f"\n\n{output_of(command)}\n" in PAGE.read_text(), (
        "run: python -m scripts.docs.error_table, and paste it"
    )


def test_every_kind_says_when_it_comes() -> None:
    table = rows()
    assert len(table) > 12
    assert all(row.meaning.endswith(".") for row in table)


def test_the_client_retries_exactly_what_the_table_says() -> None:
    for row in rows():
        error = ClientError("", grpc.StatusCode[row.status], row.kind)
        # If an answer names a waiting time, the caller decides on a retry.
        names_time = row.kind in ("rate_limited", "overloaded")
        retried = row.retry is not Retry.NEVER and not names_time
        assert is_transient(error) is retried, row


@pytest.mark.parametrize("kind", m.ErrorKind)
def test_a_refused_answer_carries_status_kind_and_hint(kind: m.ErrorKind) -> None:
    (row,) = [row for row in rows() if row.kind == kind.value]
    with running_front() as front:
        front.engine.reject = m.RequestError(kind, "no")
        refused = refusal(front.calls.generate, 5)
    assert (refused.status.name, refused.kind, refused.message) == (row.status, row.kind, "no")
    assert refused.status is not grpc.StatusCode.UNKNOWN
    assert refused.trailing[RETRY_KEY] == row.retry.value


@pytest.mark.parametrize(
    ("method", "request_message", "kind"),
    [
        ("Explain", pb.ExplainRequest(request_id="nobody"), "unknown_request"),
        ("Tree", pb.TreeRequest(under="1.1"), "unknown_node"),
        ("Tree", pb.TreeRequest(under="one"), "invalid"),
        ("ChangeRole", pb.ChangeRoleRequest(role=pb.NODE_ROLE_DECODE), "role_fixed"),
    ],
)
def test_an_operator_s_refusal_is_in_the_table(
    method: str, request_message: object, kind: str
) -> None:
    (row,) = [row for row in rows() if row.kind == kind]
    with running_front() as front:
        refused = refusal(getattr(front.calls.admin, method), request_message)
    assert (refused.status.name, refused.kind) == (row.status, kind)


def test_a_node_of_both_roles_says_what_to_start_in_its_place() -> None:
    with (
        running_front() as front,
        open_channel(front.address, None) as channel,
        refused_as("role_fixed", "start tasuki prefill or tasuki decode"),
    ):
        change_role(channel, "decode", {}, wait_seconds=5)


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
