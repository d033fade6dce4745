"""Tests of --target: either port of a node may be given."""

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tasuki.cli import main as cli
from tasuki.cli.node_target import NodeTarget, grpc_address, http_address
from tasuki.cli.role import main as role
from tasuki.client.errors import ClientError
from tasuki.client.prompt import Prompt
from tasuki.client.session import Client
from tasuki.utils.tls import ClientTls
from tests.harness.certificates import Authority
from tests.harness.daemons import Node, flags
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.programs import error_line
from tests.harness.running_nodes import HTTP, fused_node, running


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    with fused_node(*HTTP) as started:
        yield started


@pytest.mark.parametrize("port", ["http", "grpc"])
def test_each_command_takes_both_ports(
    node: Node, port: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = node.http_address if port == "http" else node.address
    node.client.generate(Prompt(token_ids=[5, 6, 7]), request_id=port, max_new_tokens=2).result()
    assert cli.main(["explain", port, "--target", target]) == 0
    assert f"request {port}, ended" in capsys.readouterr().out
    assert cli.main(["top", "--target", target, "--screens", "1"]) == 0
    assert "prompt" in capsys.readouterr().out
    out = str(tmp_path / "r.jsonl.gz")
    assert cli.main(["record", "--target", target, "--out", out, "--seconds", "0.2"]) == 0
    assert "events in" in capsys.readouterr().err
    # A fused node has both roles and says so itself, whichever address was asked.
    with pytest.raises(ClientError, match="both prefills and decodes"):
        role(["decode", "--target", target])


def test_the_old_flag_means_the_same(node: Node, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["top", "--http", node.http_address, "--screens", "1"]) == 0
    assert "prompt" in capsys.readouterr().out


def test_the_usual_ports_are_looked_at_where_no_target_is_given(
    node: Node, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    nobody = f"127.0.0.1:{_unused_port()}"
    monkeypatch.setattr("tasuki.cli.node_target._USUAL", (nobody, node.address))
    assert NodeTarget().http_address() == node.http_address
    monkeypatch.setattr("tasuki.cli.node_target._USUAL", (nobody, nobody))
    assert cli.main(["top"]) == 1
    assert "start one, or give --target HOST:PORT" in error_line(capsys)


def test_both_ports_lead_to_each_other_by_tls_and_key(tmp_path: Path) -> None:
    authority = Authority(tmp_path, "ours")
    issued = authority.issue()
    secured = ("--tls-cert", issued.certificate, "--tls-key", issued.key, "--api-key", "secret")
    with _standing("serve", *flags(), *HTTP, *secured) as (grpc, http):
        asked = (authority.path, "secret")
        assert grpc_address(http, *asked) == grpc_address(grpc, *asked) == grpc
        assert http_address(http, *asked) == http_address(grpc, *asked) == http
        with pytest.raises(ClientError, match="--api-key"):
            grpc_address(http, authority.path, "wrong")
        with pytest.raises(ClientError) as refused:
            http_address(grpc, authority.path, "wrong")
        assert refused.value.kind == "invalid_api_key"
        # The name used to reach the node stays, since its certificate has this name.
        port = grpc.rpartition(":")[2]
        assert grpc_address(http.replace("127.0.0.1", "localhost"), *asked) == f"localhost:{port}"
        with Client(grpc, tls=ClientTls(authority.path), api_key="secret") as client:
            assert client.stats().http_address == http


def test_front_workers_name_the_other_port_too() -> None:
    with running(Node("serve", *flags(), *HTTP, "--front-workers", "2")) as started:
        assert grpc_address(started.http_address, "", "") == started.address
        assert http_address(started.address, "", "") == started.http_address


def test_a_node_without_http_says_how_to_have_one() -> None:
    with fused_node("--no-http") as started, pytest.raises(ClientError, match="--http-bind"):
        http_address(started.address, "", "")


def test_a_port_where_nobody_listens_is_named() -> None:
    target = f"127.0.0.1:{_unused_port()}"
    for find in (grpc_address, http_address):
        with pytest.raises(ClientError, match=f"nothing listens at {target}.*is a node running"):
            find(target, "", "")
    for wrong in ("8000", "127.0.0.1:http", "127.0.0.1:70000", ":1"):
        with pytest.raises(ClientError, match="is not HOST:PORT"):
            grpc_address(wrong, "", "")


def test_a_server_that_says_nothing_is_waited_for_within_a_bound(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tasuki.cli.node_target._SECONDS", 0.2)
    # The system accepts the connection, but no process reads from it.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        target = f"127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClientError):
            http_address(target, "", "")


def _unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def _standing(command: str, *more: str) -> Iterator[tuple[str, str]]:
    """Yield the gRPC and HTTP addresses of a node, started by this test with its own client."""
    daemon = ForkedDaemon(command, more)
    try:
        address = daemon.wait_ready()
        assert daemon.http_address is not None
        yield address, daemon.http_address
    finally:
        assert daemon.stop() == 0
