"""Reader of the picture parts of one request, in the forms of each API.

| API | part |
| --- | --- |
| chats | `image_url` with `{url, detail}` or a URL; `image`; `input_image` |
| Messages | block `image` with `source` of type `base64` or `url`; in `tool_result` too |
| Responses | `input_image` with `image_url`, `detail`; in `function_call_output` too |

PictureReader collects the pictures in the order of the request, within its bounds. It decodes none:
see PictureSizes. Files, stored files, audio and video are refused by name. One request, one thread.
An error names the place.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.server.errors import InvalidField, PictureTooLarge

from .encoded_bytes import MOST_HEAD, Base64, check_declared, read_base64, read_url
from .sent_picture import PictureLimits, SentPicture, read_detail

CHAT_PARTS = ("image_url", "image", "input_image")
"""Types of picture parts of chats."""
MESSAGE_BLOCKS = ("image",)
RESPONSE_PARTS = ("input_image",)

_REFUSED: Mapping[str, str] = {
    "file": "files are not read: send pages as pictures, or the text",
    "input_file": "files are not read: send pages as pictures, or the text",
    "document": "files are not read: send pages as pictures, or the text",
    "video": "videos are not read: send frames as pictures",
    "video_url": "videos are not read: send frames as pictures",
    "input_video": "videos are not read: send frames as pictures",
    "input_audio": "audio is not read: send text",
    "audio_url": "audio is not read: send text",
    "image_embeds": "embeddings are not taken: send the picture itself",
}
"""Fix of a part refused by its type."""
_MOVED = "data:,"
"""URL of a part that has lost its data."""
_FILE_ID = "names a stored file, and this node stores none: send the picture itself"


def check_part_type(kind: str, place: str) -> None:
    """Raise InvalidField for a part of a type refused by name, such as a file. Any other type
    passes."""
    if kind in _REFUSED:
        raise InvalidField(place, f"is of type {kind}: {_REFUSED[kind]}")


def pictures_read(reader: "PictureReader | None") -> Sequence[SentPicture]:
    """Return the pictures read so far; none without a reader."""
    return () if reader is None else reader.pictures


class PictureReader:
    """pictures: those read so far, in the order of the request."""

    def __init__(self, limits: PictureLimits, before: Sequence[SentPicture] = ()) -> None:
        """before: pictures of the conversation's stored part."""
        self._limits = limits
        self.pictures: list[SentPicture] = [*before]

    def chat_part(self, part: dict[str, Any], place: str) -> None:
        """Move the picture of a chat's part to `pictures`. The part loses its data: then memory
        holds these once, and the next picture's text takes the place of this one's. REQUIRES: its
        type is one of CHAT_PARTS. Raises InvalidField, PictureNotFetched; PictureTooLarge, also for
        too many pictures."""
        # Qwen's own form has the URL under `image`.
        name = "image" if part.get("image") is not None else "image_url"
        self._of_url(part, name, place)
        holder, key = (part[name], "url") if isinstance(part[name], dict) else (part, name)
        holder[key] = _MOVED

    def response_part(self, part: Mapping[str, Any], place: str) -> None:
        """Add the picture of a Responses item's part to `pictures`. REQUIRES: its type is one of
        RESPONSE_PARTS. Raises as chat_part()."""
        self._of_url(part, "image_url", place)

    def message_block(self, block: Mapping[str, Any], place: str) -> None:
        """Add the picture of a Messages block to `pictures`. REQUIRES: its type is one of
        MESSAGE_BLOCKS. Raises as chat_part()."""
        self._check_count(place)
        at = f"{place}.source"
        source = block.get("source")
        if not isinstance(source, dict):
            raise InvalidField(at, "must be an object with a type: base64 or url")
        match source.get("type"):
            case "base64":
                data, declared = source.get("data"), source.get("media_type")
                if not isinstance(data, str):
                    raise InvalidField(f"{at}.data", "must be a string of base64")
                if not isinstance(declared, str):
                    raise InvalidField(f"{at}.media_type", "must be a string such as image/png")
                check_declared(declared[:MOST_HEAD].lower(), f"{at}.media_type")
                found = read_base64(data, f"{at}.data", self._limits.each.most_bytes)
            case "url":
                found = self._read_url(source.get("url"), f"{at}.url")
            case "file":
                raise InvalidField(f"{at}.file_id", _FILE_ID)
            case _:
                raise InvalidField(f"{at}.type", "must be base64 or url")
        self.pictures.append(SentPicture(place, found))

    def file(self, content: bytes, detail: str, place: str) -> None:
        """Read a file of gRPC. detail: as in chats; may be empty. Raises InvalidField,
        PictureTooLarge."""
        self._check_count(place)
        most = self._limits.each.most_bytes
        if not content:
            raise InvalidField(f"{place}.picture.file", "is empty: send the file's bytes")
        if len(content) > most:
            raise PictureTooLarge(
                place, f"has {len(content)} bytes, and {most} are allowed: shrink it"
            )
        read = read_detail(detail or None, f"{place}.picture.detail")
        self.pictures.append(SentPicture(place, content, read))

    def _of_url(self, part: Mapping[str, Any], name: str, place: str) -> None:
        self._check_count(place)
        if part.get("file_id") is not None:
            raise InvalidField(f"{place}.file_id", _FILE_ID)
        value, at = part.get(name), f"{place}.{name}"
        detail, of_detail = part.get("detail"), f"{place}.detail"
        if isinstance(value, dict):
            if value.get("detail") is not None:
                detail, of_detail = value["detail"], f"{at}.detail"
            value, at = value.get("url"), f"{at}.url"
        read = read_detail(detail, of_detail)
        self.pictures.append(SentPicture(place, self._read_url(value, at), read))

    def _read_url(self, url: Any, place: str) -> Base64:
        if not isinstance(url, str):
            raise InvalidField(place, "must be a URL: send data:image/png;base64,...")
        return read_url(url, place, self._limits.each.most_bytes)

    def _check_count(self, place: str) -> None:
        most = self._limits.most_pictures
        if len(self.pictures) >= most:
            raise PictureTooLarge(
                place, f"is picture {most + 1} of the request, and {most} are allowed: send fewer"
            )
