"""A stopped daemon accepts requests during its grace period, then ends cleanly. It reports this to
the service manager."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from tasuki.utils.system import report_ready
from tests.harness.daemons import Node, asked, flags, random_prompt
from tests.harness.forked_daemon import ForkedDaemon
from tests.harness.http_calls import Reply, ask
from tests.harness.running_nodes import HTTP, node_pair
from tests.harness.waiting import HANG_SECONDS, until

LONG_GRACE = ("--drain-grace", "600")
WORKERS = ("--front-workers", "2", "--engine-process", "process")


@contextmanager
def started(*more: str, environment: dict[str, str] | None = None) -> Iterator[Node]:
    """Yield a node that may be left in any state."""
    launch = partial(ForkedDaemon, environment=environment)
    node = Node("serve", *flags(), *HTTP, *more, launch=launch)
    try:
        yield node.wait_ready()
    finally:
        node.put_down()


def is_ready(node: Node) -> bool:
    return ask(node.http_address, "GET", "/ready").status == 200


def completion(node: Node, tokens: int = 2, **fields: object) -> Reply:
    body = {"prompt": [5, 6], "max_tokens": tokens, "ignore_eos": True, **fields}
    return ask(node.http_address, "POST", "/v1/completions", body)


@pytest.mark.parametrize("more", [(), WORKERS], ids=["one_front", "front_workers"])
def test_a_node_takes_requests_until_a_second_signal_skips_its_grace(more: tuple[str, ...]) -> None:
    with started(*LONG_GRACE, *more) as node:
        os.kill(node.pid, signal.SIGTERM)
        # Each connection may be another worker's.
        until(lambda: not any(is_ready(node) for _ in range(8)), "it stays ready")
        for _ in range(4):
            reply = completion(node)
            assert reply.status == 200 and reply.headers["Connection"] == "close"
        os.kill(node.pid, signal.SIGTERM)
        until(lambda: node.exit_status is not None, "its grace goes on")
        assert node.exit_status == 0


def test_a_signal_beyond_the_grace_ends_a_node_at_once() -> None:
    with started(*LONG_GRACE, "--drain-timeout", "600") as node:
        stream = asked(node, (5, 6), b"", 10_000)
        next(iter(stream))
        for _ in range(2):
            os.kill(node.pid, signal.SIGTERM)
            until(lambda: not is_ready(node), "it stays ready")
        until(lambda: completion(node).status == 503, "its grace goes on")
        os.kill(node.pid, signal.SIGTERM)
        until(lambda: node.exit_status is not None, "it goes on")
        assert node.exit_status == 128 + signal.SIGTERM


def test_after_the_grace_requests_are_refused_and_the_running_one_ends_whole() -> None:
    with started("--drain-grace", "1", "--drain-timeout", "120") as node:
        stream = asked(node, (5, 6), b"", 1000)
        parts = iter(stream)
        next(parts)
        os.kill(node.pid, signal.SIGTERM)
        until(lambda: not is_ready(node), "it stays ready")
        assert completion(node).status == 200
        until(lambda: completion(node).status == 503, "its grace goes on")
        refused = completion(node)
        assert refused.refusal == (503, "draining") and refused.headers["Retry-After"]
        for _ in parts:
            pass
        assert len(stream.result().token_ids) == 1000
        until(lambda: node.exit_status is not None, "it does not end")
        assert node.exit_status == 0


def test_a_prefill_node_serves_decode_nodes_in_its_grace() -> None:
    with node_pair(*HTTP, prefill=LONG_GRACE) as (prefill, decode):
        os.kill(prefill.pid, signal.SIGTERM)
        until(lambda: not is_ready(prefill), "it stays ready")
        answer = asked(decode, random_prompt(200, 1), b"", 2).result()
        assert answer.usage.prefilled_on == "prefill"
        os.kill(prefill.pid, signal.SIGTERM)
        until(lambda: prefill.exit_status is not None, "its grace goes on")
        assert prefill.exit_status == 0


class Manager:
    """A service manager's socket."""

    def __init__(self, address: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(HANG_SECONDS)
        self._socket.bind(address.replace("@", "\0", 1) if address[0] == "@" else address)

    def message(self) -> dict[str, str]:
        """Return the next message."""
        lines = self._socket.recv(4096).decode().splitlines()
        return dict(line.split("=", 1) for line in lines)

    def close(self) -> None:
        self._socket.close()


def test_a_service_manager_sees_a_node_stand_and_end(tmp_path: Path) -> None:
    path = str(tmp_path / "notify")
    manager = Manager(path)
    with started(environment={"NOTIFY_SOCKET": path}) as node:
        stands = manager.message()
        assert stands["READY"] == "1" and node.http_address in stands["STATUS"]
        os.kill(node.pid, signal.SIGTERM)
        assert manager.message()["STOPPING"] == "1"
        until(lambda: node.exit_status is not None, "it does not end")
    manager.close()


def test_an_abstract_socket_of_a_service_manager_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    address = f"@tasuki-{os.getpid()}"
    manager = Manager(address)
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    report_ready("at 127.0.0.1:1")
    assert manager.message() == {"READY": "1", "STATUS": "at 127.0.0.1:1"}
    manager.close()


def test_a_service_manager_that_is_gone_stops_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    report_ready("at 127.0.0.1:1")
    assert "takes no message" in caplog.text
