"""The item that carries a conversation's summary to its client and back.

Its content is an encoding with a check of its letters, and no secret: whoever may send it may send
any other text too. So it needs no key, and every node reads what another one wrote. Pure functions.
"""

import base64
import binascii
import hashlib
from typing import Any

from tasuki.server.errors import InvalidField

KIND = "compaction"
SUMMARY_LEAD = "Summary of the conversation before this, of which only some messages are left:\n\n"
"""What a model reads before the summary."""

_CARRIED = "tasuki.compaction."
_CHECK_BYTES = 8


def compaction_item(item_id: str, summary: str) -> dict[str, Any]:
    """Return the item of a summary."""
    text = summary.encode(errors="replace")
    carried = base64.b64encode(_check(text) + text).decode()
    return {"id": item_id, "type": KIND, "encrypted_content": _CARRIED + carried}


def read_compaction(item: dict[str, Any], place: str) -> str:
    """Return the summary of an item that came back, as a model reads it. Raises InvalidField."""
    field = f"{place}.encrypted_content"
    content = item.get("encrypted_content")
    if not isinstance(content, str) or not content.startswith(_CARRIED):
        raise InvalidField(field, "was not made by tasuki: send the conversation itself")
    try:
        found = base64.b64decode(content.removeprefix(_CARRIED), validate=True)
        text = found[_CHECK_BYTES:].decode()
    except (binascii.Error, ValueError) as error:
        raise InvalidField(field, "is not as it was sent") from error
    if found[:_CHECK_BYTES] != _check(found[_CHECK_BYTES:]):
        raise InvalidField(field, "is not as it was sent")
    return SUMMARY_LEAD + text


def _check(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=_CHECK_BYTES).digest()
