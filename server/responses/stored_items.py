"""Items of stored responses, which a later request may name in place of sending them.

An item's id names its response and its place in it, so that nothing is kept beside the responses.
Any thread; one request.
"""

import re
from typing import Any

import msgspec

from tasuki.server.auth.request_context import RequestContext

from .stored_responses import Responses

_RESPONSE = "resp_"
_NAME = re.compile(r"[a-z]+_([0-9a-f]{32})_[0-9]+")


def item_id(kind: str, response_id: str, place: int) -> str:
    """kind: msg, rs, fc or ctc. place: in the response's output."""
    return f"{kind}_{response_id.removeprefix(_RESPONSE)}_{place}"


class StoredItems:
    def __init__(self, store: Responses, context: RequestContext) -> None:
        """context: whose responses are looked into."""
        self._store = store
        self._context = context
        self._of: dict[str, dict[str, dict[str, Any]]] = {}

    def get(self, name: str) -> dict[str, Any] | None:
        """The item as its response has it; None where it is not stored for this caller."""
        found = _NAME.fullmatch(name)
        if found is None:
            return None
        response_id = _RESPONSE + found[1]
        if response_id not in self._of:
            self._of[response_id] = self._items(response_id)
        return self._of[response_id].get(name)

    def _items(self, response_id: str) -> dict[str, dict[str, Any]]:
        response = self._store.get(self._context, response_id)
        if response is None:
            return {}
        return {item["id"]: item for item in msgspec.json.decode(response.body)["output"]}
