"""The error table is the code's, and what a caller is told is the table's."""

import sys
from pathlib import Path

import grpc
import pytest

from scripts.docs.error_table import rows
from tasuki.cli.role import change_role
from tasuki.client.channel import open_channel
from tasuki.client.errors import ClientError, is_transient
from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import RETRY_KEY, Retry
from tests.harness.grpc_fixtures import running_front
from tests.harness.programs import output_of
from tests.harness.refusals import refusal, refused_as

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
        # Where an answer names a time to wait, it is the caller's to decide.
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
