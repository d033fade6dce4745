"""Requests that an API refuses. Pure values."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_REFUSED = frozenset({400, 422})
_NOT_FOUND = frozenset({400, 404})


@dataclass(frozen=True)
class BadRequest:
    """what: is wrong with it. body: bytes of the request. statuses: that answer it."""

    what: str
    body: bytes
    statuses: frozenset[int]


def bad_requests(
    good: Mapping[str, Any], torn: bytes, changes: Mapping[str, Mapping[str, Any]]
) -> list[BadRequest]:
    """Return the bad ones of an API. good: a body that it takes. torn: the beginning of one.
    changes: by the fault, fields with other values than in the good body; None leaves one out."""

    def changed(fields: Mapping[str, Any]) -> bytes:
        body = {**good, **fields}
        return json.dumps({key: value for key, value in body.items() if value is not None}).encode()

    return [
        BadRequest("JSON that breaks off", torn, _REFUSED),
        BadRequest("an unknown model", changed({"model": "no-such-model"}), _NOT_FOUND),
        *(BadRequest(fault, changed(fields), _REFUSED) for fault, fields in changes.items()),
    ]
