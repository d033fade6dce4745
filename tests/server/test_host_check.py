"""A page of a stranger's name that resolves to this node is refused by its Host header."""

import pytest

from tasuki.server.config import ServerConfig
from tasuki.server.http.access import host_name
from tests.harness.http_fixtures import HttpFront, running_http


def status(http: HttpFront, host: str, path: str = "/v1/models") -> int:
    return http.ask("GET", path, headers={"Host": host}).status


def test_loopback_answers_to_its_own_names_only(http: HttpFront) -> None:
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:8000", "127.0.0.7", "[::1]:80"):
        assert status(http, host) == 200, host
    for host in ("evil.example", "evil.example:80", "localhost.evil.example", "10.0.0.1", ""):
        refused = http.ask("GET", "/v1/models", headers={"Host": host})
        assert refused.refusal == (421, "wrong_host"), host
    refused = http.complete({"Host": "evil.example"})
    assert refused.status == 421 and not http.engine.received
    assert [status(http, "10.0.0.1:9", path) for path in ("/health", "/ready")] == [200, 200]


@pytest.mark.parametrize(
    ("allowed", "expected"), [("api.example, [fd00::5]", 200), ("*", 200), ("other.example", 421)]
)
def test_more_names_are_served_where_they_are_listed(allowed: str, expected: int) -> None:
    with running_http(config=ServerConfig(allowed_hosts=allowed)) as http:
        assert status(http, "api.example:443") == expected
        assert status(http, "localhost") == 200
        if "fd00" in allowed:
            assert status(http, "[FD00::5]:80") == 200
            assert status(http, "evil.example") == 421


@pytest.mark.parametrize(
    ("header", "name"),
    [
        ("Node-1.Example.:80", "node-1.example"),
        ("[::1]", "::1"),
        ("", ""),
        (":80", ""),
    ],
)
def test_a_host_header_is_a_name_and_perhaps_a_port(header: str, name: str) -> None:
    assert host_name(header) == name
