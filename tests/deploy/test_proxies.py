"""nginx and haproxy as they are shipped, before real nodes."""

import http.client
import json
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts.rolling_restart.__main__ import Settings, restarted_under_load
from scripts.rolling_restart.proxy import KINDS, SHIPPED, running_proxy
from tests.harness.daemons import Node
from tests.harness.http_calls import JSON, Reply, ask
from tests.harness.programs import program
from tests.harness.response_sockets import response_socket
from tests.harness.running_nodes import HTTP, fused_node
from tests.harness.waiting import until

PAGE = Path(__file__).parents[2] / "docs" / "proxies.md"


@dataclass
class Proxied:
    """A proxy before two nodes. address: HOST:PORT of the proxy."""

    address: str
    nodes: tuple[Node, Node]

    def post(self, path: str, body: object, **headers: str) -> Reply:
        return ask(self.address, "POST", path, body, headers)

    def complete(self, **headers: str) -> Reply:
        return self.post("/v1/completions", {"prompt": [5, 6], "max_tokens": 1}, **headers)


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    with fused_node(*HTTP) as one, fused_node(*HTTP) as other:
        yield one, other


@pytest.fixture(scope="module", params=[*KINDS])
def proxied(
    request: pytest.FixtureRequest,
    nodes: tuple[Node, Node],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Proxied]:
    kind = KINDS[request.param]
    program(kind.program, f"install Debian's {kind.package}")
    addresses = [node.http_address for node in nodes]
    with running_proxy(request.param, addresses, tmp_path_factory.mktemp("proxy")) as address:
        yield Proxied(address, nodes)


def test_both_nodes_answer(proxied: Proxied) -> None:
    before = [finished(node) for node in proxied.nodes]
    for _ in range(12):
        assert proxied.complete().status == 200
    after = [finished(node) for node in proxied.nodes]
    assert sum(after) - sum(before) == 12 and all(a > b for a, b in zip(after, before, strict=True))


def finished(node: Node) -> int:
    """Return the number of requests answered by the node."""
    text = ask(node.http_address, "GET", "/metrics").body.decode()
    counts = re.findall(r"^tasuki_requests_finished_total\{[^}]*\} (\S+)$", text, re.MULTILINE)
    return round(sum(map(float, counts)))


def test_a_conversation_that_names_itself_stays_with_one_node(proxied: Proxied) -> None:
    for session in ("one", "two", "three"):
        before = [finished(node) for node in proxied.nodes]
        for _ in range(6):
            assert proxied.complete(**{"x-session-id": session}).status == 200
        after = [finished(node) for node in proxied.nodes]
        assert sorted(a - b for a, b in zip(after, before, strict=True)) == [0, 6]


def test_a_stream_comes_token_by_token(proxied: Proxied) -> None:
    connection = http.client.HTTPConnection(proxied.address, timeout=60)
    body = {"prompt": [5], "max_tokens": 200, "ignore_eos": True, "stream": True}
    connection.request("POST", "/v1/completions", json.dumps(body), JSON)
    reply = connection.getresponse()
    began = time.monotonic()
    came = []
    while line := reply.readline():
        if line.startswith(b"data: "):
            came.append(time.monotonic())
    connection.close()
    assert len(came) >= 200
    assert came[0] - began < (came[-1] - began) / 2, "it came when it was over"


def test_a_body_of_megabytes_passes(proxied: Proxied) -> None:
    text = "it was so " * 300_000
    reply = proxied.post("/tokenize", {"prompt": text})
    assert reply.refusal == (400, "context_length_exceeded"), "the node has read it"


def test_a_socket_passes(proxied: Proxied) -> None:
    with response_socket(proxied.address) as socket:
        assert socket.response(max_output_tokens=16)["status"] in ("completed", "incomplete")


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages"])
def test_what_a_draining_node_refuses_another_answers(proxied: Proxied, path: str) -> None:
    body: dict[str, object] = {"max_tokens": 1}
    if path == "/v1/messages":
        body |= {"model": "x", "messages": [{"role": "user", "content": "so"}]}
        models = ask(proxied.address, "GET", "/v1/models").json["data"]
        body["model"] = models[0]["id"]
    else:
        body["prompt"] = [5]
    left, _ = proxied.nodes
    left.drain()
    try:
        answered = [proxied.post(path, body).status for _ in range(12)]
        assert answered == [200] * 12
    finally:
        left.undrain()
    until(lambda: ask(left.http_address, "GET", "/ready").status == 200, "it does not come back")
    # haproxy must notice it first.
    until(lambda: back(proxied, left), "the proxy does not ask it again")


def back(proxied: Proxied, node: Node) -> bool:
    before = finished(node)
    for _ in range(4):
        proxied.complete()
    return finished(node) > before


@pytest.mark.parametrize("name", [*KINDS])
@pytest.mark.timeout(400)
def test_restarts_in_turn_lose_no_request(name: str, tmp_path: Path) -> None:
    program(KINDS[name].program, f"install Debian's {KINDS[name].package}")
    settings = Settings(
        proxy=name,
        requests=40,
        a_second=8.0,
        restarts=2,
        grace=3.0,
        shortest=0.5,
        longest=3.0,
        pause=1.0,
        seed=1,
    )
    run = restarted_under_load(settings, tmp_path)
    assert not run.outcome.lost, run.outcome.lost[:5]
    assert run.passed and run.outcome.sent >= 40 and len(run.restarts) == 2


@pytest.mark.parametrize("name", [*KINDS])
def test_the_page_has_the_configuration_that_is_tested(name: str) -> None:
    blocks = re.findall(rf"```{name}\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks == [(SHIPPED / KINDS[name].file).read_text(encoding="utf-8")]
