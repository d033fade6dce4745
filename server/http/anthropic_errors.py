"""Refusals in Anthropic's shape: a status, and {"type": "error", "error": {type, message}}.

Made of the same refusals in OpenAI's shape, so that every kind has both. Pure.
"""

from collections.abc import Mapping
from typing import Any

_OVERLOADED = 529
# A status that Anthropic's clients know by another number.
_STATUS = {501: 400, 503: _OVERLOADED}
_ELSEWHERE = ("draining", "behind")
"""Codes that stay 503: reverse proxies send those on to another node, and know no 529."""
_TYPE = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    _OVERLOADED: "overloaded_error",
}
# Agents shorten their conversation when they read this.
_TOO_LONG = "prompt is too long: "


def anthropic_status(status: int, code: str) -> int:
    """status, code: of the refusal in OpenAI's shape."""
    return status if code in _ELSEWHERE else _STATUS.get(status, status)


def anthropic_error(status: int, body: Mapping[str, Any], request_id: str) -> dict[str, Any]:
    """status, body: of the refusal in OpenAI's shape."""
    error = body["error"]
    too_long = error["code"] == "context_length_exceeded"
    default = "api_error" if status >= 500 else "invalid_request_error"
    shown = {
        "type": _TYPE.get(anthropic_status(status, error["code"]), default),
        "message": (_TOO_LONG if too_long else "") + error["message"],
    }
    return {"type": "error", "error": shown, "request_id": request_id}
