"""A JSON request's fields by name and type, or InvalidField with the name and the mend.

Pure but for reading the body. A field that is null counts as absent, as OpenAI's clients mean it.
"""

import json
import sys
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from .errors import InvalidField, InvalidRequest
from .http_errors import HttpRefusal
from .json_depth import MAX_DEPTH, nested_too_deeply


class RequestFields:
    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = values

    def get(self, name: str) -> Any:
        return self._values.get(name)

    def text(self, name: str) -> str | None:
        value = self.get(name)
        if value is not None and not isinstance(value, str):
            raise InvalidField(name, "must be a string")
        return value

    def flag(self, name: str) -> bool:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise InvalidField(name, "must be true or false")
        return bool(value)

    def integer(self, name: str) -> int | None:
        """Fits 63 bits and a sign."""
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not -(2**63) <= value < 2**63:
            raise InvalidField(name, "must be an integer")
        return value

    def number(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise InvalidField(name, "must be a number")
        if not abs(value) <= sys.float_info.max:
            raise InvalidField(name, "must be finite")
        return float(value)

    def items(self, name: str) -> list[Any]:
        value = self.get(name)
        if value is not None and not isinstance(value, list):
            raise InvalidField(name, "must be a list")
        return value or []

    def fields(self, name: str) -> "RequestFields":
        """Those of an object; of an empty one where it is absent."""
        value = self.get(name)
        if value is not None and not isinstance(value, dict):
            raise InvalidField(name, "must be an object")
        return RequestFields(value or {})


async def read_fields(request: web.Request) -> RequestFields:
    """The body, which must be a JSON object that says it is JSON: a web page cannot send that to
    another origin unasked."""
    if request.content_type != "application/json":
        raise HttpRefusal(415, "not_json", "send the body with Content-Type: application/json")
    body = await request.read()
    try:
        values = json.loads(body, parse_constant=_no_constant)
        if b"\\ud" in body.lower():
            # Half a surrogate pair is JSON, but no text.
            json.dumps(values, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"body is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise InvalidRequest("body must be a JSON object")
    if nested_too_deeply(values):
        raise InvalidRequest(f"body is nested too deeply: use at most {MAX_DEPTH} levels")
    return RequestFields(values)


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
