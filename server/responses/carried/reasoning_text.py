"""The text of a reasoning item, shown and carried.

`encrypted_content` is the same text encoded, for clients that send back nothing else. It is an
encoding, no secret: the item shows the text too. Pure functions.
"""

import base64
import binascii
from typing import Any

from tasuki.server.errors import InvalidField

_CARRIED = "tasuki.text."


def carried(text: str) -> str:
    return _CARRIED + base64.b64encode(text.encode(errors="replace")).decode()


def read_reasoning(item: dict[str, Any], place: str) -> str:
    """Of an item that came back. What another model thought is shown by its summary alone."""
    shown = _texts(item.get("content"), f"{place}.content")
    if shown:
        return shown
    content = item.get("encrypted_content")
    if isinstance(content, str) and content.startswith(_CARRIED):
        try:
            return base64.b64decode(content.removeprefix(_CARRIED), validate=True).decode()
        except (binascii.Error, UnicodeDecodeError) as error:
            raise InvalidField(f"{place}.encrypted_content", "is not as it was sent") from error
    return _texts(item.get("summary"), f"{place}.summary")


def _texts(parts: Any, place: str) -> str:
    if parts is None:
        return ""
    if not isinstance(parts, list):
        raise InvalidField(place, "must be a list of parts")
    texts = []
    for part in parts:
        text = part.get("text") if isinstance(part, dict) else None
        if not isinstance(text, str):
            raise InvalidField(place, "must be a list of parts with a text")
        texts.append(text)
    return "\n\n".join(texts)
