"""HTTP calls whose refusals are replies like any other."""

import http.client
import json
from dataclasses import dataclass
from typing import Any

from tests.harness.waiting import HANG_SECONDS

JSON = {"Content-Type": "application/json"}


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Of a refusal in OpenAI's shape."""
        found: dict[str, Any] = self.json["error"]
        return found

    @property
    def refusal(self) -> tuple[int, str]:
        """The status, and the error's code."""
        return self.status, self.error["code"]

    @property
    def events(self) -> list[Any]:
        """Those of a stream, which must end with [DONE]."""
        lines = self.body.decode().split("\n\n")
        assert lines[-2:] == ["data: [DONE]", ""], lines[-3:]
        return [json.loads(line.removeprefix("data: ")) for line in lines[:-2]]


def connect(address: str) -> http.client.HTTPConnection:
    """address: HOST:PORT."""
    return http.client.HTTPConnection(address, timeout=HANG_SECONDS)


def ask(
    address: str,
    method: str,
    path: str,
    body: object = None,
    headers: dict[str, str] | None = None,
) -> Reply:
    """address: HOST:PORT. body: bytes as they are, None for none, anything else as JSON."""
    connection = connect(address)
    try:
        content = body if isinstance(body, bytes | None) else json.dumps(body)
        connection.request(method, path, content, {**JSON, **(headers or {})})
        response = connection.getresponse()
        return Reply(response.status, dict(response.headers), response.read())
    finally:
        connection.close()


def fetched(address: str, path: str) -> bytes:
    """What a GET is answered, which must be 200."""
    reply = ask(address, "GET", path)
    assert reply.status == 200, reply
    return reply.body
