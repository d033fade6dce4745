"""Pictures of stored messages as parts of Responses items, and the choice to show their bytes.

A picture comes back as it was sent: a `data:` URL with its own base64. Listings leave the URL out
unless `include` asks for it, as at OpenAI. Pure functions; any thread. A part costs the length of
its file.
"""

import base64
import binascii
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tasuki.server.errors import InvalidField
from tasuki.server.openapi.responses_fields import IMAGE_URLS
from tasuki.server.pictures.sent_picture import SentPicture, media_type
from tasuki.server.text.chat_message import ChatMessage

_HEAD = 64
"""Characters of base64 with a file's first bytes. Some may be white space."""


def shows_urls(query: Mapping[str, str]) -> bool:
    """Return True if a listing's query asks for the URLs of pictures. Raises InvalidField for
    anything else in `include`."""
    wanted = [value for name in ("include", "include[]") if (value := query.get(name)) is not None]
    for value in wanted:
        if value != IMAGE_URLS:
            raise InvalidField("include", f"may hold {IMAGE_URLS} alone, not {value!r:.60}")
    return bool(wanted)


def pictures_of(
    messages: Sequence[ChatMessage], sent: Sequence[SentPicture]
) -> list[tuple[SentPicture, ...]]:
    """Return the pictures of each message. sent: those of all messages, in their order."""
    rest = iter(sent)
    return [tuple(next(rest) for _ in message.pictures) for message in messages]


def input_parts(
    message: ChatMessage, pictures: Sequence[SentPicture], *, urls: bool
) -> Iterator[dict[str, Any]]:
    """Yield the content of a message as parts of text and pictures. urls: show the pictures' bytes.
    A message without text and pictures has one empty text."""
    rest = iter(pictures)
    for part in message.content_parts() or [""]:
        yield _picture(next(rest), urls=urls) if part is None else _text(part)


def picture_url(picture: SentPicture) -> str:
    """Return the picture as a `data:` URL. Raises InvalidField if its file is no picture."""
    if isinstance(picture.data, bytes):
        kind = media_type(picture.data[:_HEAD], picture.place)
        return f"data:{kind};base64,{base64.b64encode(picture.data).decode()}"
    text = picture.data.text.translate(None, b" \t\r\n")
    try:
        head = binascii.a2b_base64(text[:_HEAD])
    except binascii.Error as error:
        raise InvalidField(picture.place, "is not base64: encode the file's bytes") from error
    return f"data:{media_type(head, picture.place)};base64,{text.decode()}"


def _text(text: str) -> dict[str, Any]:
    return {"type": "input_text", "text": text}


def _picture(picture: SentPicture, *, urls: bool) -> dict[str, Any]:
    shown = {"type": "input_image", "detail": picture.detail.value, "file_id": None}
    return {**shown, "image_url": picture_url(picture) if urls else None}
