"""Reader of the picture parts of one request, in the forms of each API.

| API | part |
| --- | --- |
| chats | `image_url` with `{url, detail}` or a URL; `image`; `input_image` |
| Messages | block `image` with `source` of type `base64` or `url`; in `tool_result` too |
| Responses | `input_image` with `image_url`, `detail`; in `function_call_output` too |
| all three | `video`: a list of URLs or of these parts, with `fps` |

PictureReader collects the pictures in the order of the request, within its bounds. It decodes none:
see PictureSizes. Files, stored files, audio and files of video are refused by name. One request,
one thread. An error names the place.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from tasuki.server.errors import InvalidField, PictureTooLarge, ServerError
from tasuki.utils.signatures import Notice

from .clips import listed_frames, pair_times, paired, read_fps
from .encoded_bytes import MOST_HEAD, Base64, check_declared, is_address, read_base64, read_url
from .fetching.request_addresses import RequestAddresses
from .sent_picture import PictureLimits, SentPicture, read_detail

CHAT_PARTS = ("image_url", "image", "input_image")
"""Types of picture parts of chats."""
MESSAGE_BLOCKS = ("image",)
RESPONSE_PARTS = ("input_image",)

_REFUSED: Mapping[str, str] = {
    "file": "files are not read: send pages as pictures, or the text",
    "input_file": "files are not read: send pages as pictures, or the text",
    "document": "files are not read: send pages as pictures, or the text",
    "input_video": "send frames as a list of pictures, of type video",
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
    """Return the pictures read so far; none without a reader. Raises PicturesWanted for addresses
    to fetch first."""
    if reader is None:
        return ()
    reader.check_fetched()
    return reader.pictures


class PictureReader:
    """pictures: those read so far, in the order of the request."""

    def __init__(
        self,
        limits: PictureLimits,
        before: Sequence[SentPicture] = (),
        fps: float | None = None,
        addresses: RequestAddresses | None = None,
        on_refused: Notice = lambda: None,
    ) -> None:
        """before: pictures of the conversation's stored part. fps: frames a second of clips without
        their own; None: the model reads no clips. addresses: those of the request; None: refused.
        on_refused: called for a refused part."""
        self._limits = limits
        self._fps = fps
        self._addresses = addresses
        self._on_refused = on_refused
        self._frames = sum(1 for one in before if one.pair is not None for _ in one.frames)
        self._images = sum(1 for one in before if one.pair is None)
        self.pictures: list[SentPicture] = [*before]

    @contextmanager
    def _judged(self) -> Iterator[None]:
        """Report a refusal inside the block."""
        try:
            yield
        except ServerError:
            self._on_refused()
            raise

    def chat_part(self, part: dict[str, Any], place: str) -> None:
        """Add the picture of a chat's part to `pictures`. The part loses its data, unless addresses
        may be fetched: then it is read again. So memory holds these once, and the next picture's
        text takes the place of this one's. REQUIRES: its type is one of CHAT_PARTS. Raises
        InvalidField, PictureNotFetched; PictureTooLarge, also for too many pictures."""
        with self._judged():
            self._check_count(place)
            self._add(self._chat_picture(part, place))
        if self._addresses is None:
            name = _url_field(part)
            holder, key = (part[name], "url") if isinstance(part[name], dict) else (part, name)
            holder[key] = _MOVED

    def response_part(self, part: Mapping[str, Any], place: str) -> None:
        """Add the picture of a Responses item's part to `pictures`. REQUIRES: its type is one of
        RESPONSE_PARTS. Raises as chat_part()."""
        with self._judged():
            self._check_count(place)
            self._add(self._of_url(part, "image_url", place))

    def message_block(self, block: Mapping[str, Any], place: str) -> None:
        """Add the picture of a Messages block to `pictures`. REQUIRES: its type is one of
        MESSAGE_BLOCKS. Raises as chat_part()."""
        with self._judged():
            self._check_count(place)
            self._add(self._block_picture(block, place))

    def clip(self, part: Mapping[str, Any], place: str) -> list[str]:
        """Add the pictures of a clip, one for each pair of frames, to `pictures`. Return the text
        before each of them. REQUIRES: its type is one of clips.CLIP_PARTS. Raises as
        chat_part()."""
        with self._judged():
            return self._clip(part, place)

    def _clip(self, part: Mapping[str, Any], place: str) -> list[str]:
        usual = self._clip_fps(str(part["type"]), place)
        fps = read_fps(part.get("fps"), f"{place}.fps", usual)
        detail = read_detail(part.get("detail"), f"{place}.detail")
        field, listed = listed_frames(part, place, self._limits.most_frames)
        self._check_frames(len(listed), field)
        frames = [
            replace(self._frame(frame, f"{field}[{index}]"), detail=detail)
            for index, frame in enumerate(listed)
        ]
        return self._add_clip(frames, fps)

    def file(self, content: bytes, detail: str, place: str) -> None:
        """Read a file of gRPC. detail: as in chats; may be empty. Raises InvalidField,
        PictureTooLarge."""
        with self._judged():
            self._check_count(place)
            read = read_detail(detail or None, f"{place}.picture.detail")
            self._add(SentPicture(place, self._checked(content, f"{place}.picture.file"), read))

    def files(self, contents: Sequence[bytes], fps: float, place: str) -> list[str]:
        """Read a clip of gRPC, as clip(). fps: 0 for the model's own."""
        with self._judged():
            return self._files(contents, fps, place)

    def _files(self, contents: Sequence[bytes], fps: float, place: str) -> list[str]:
        usual = self._clip_fps("clip", place)
        field = f"{place}.clip.frames"
        fps = read_fps(fps or None, f"{place}.clip.fps", usual)
        if not contents:
            raise InvalidField(field, "is empty: send one frame at least")
        self._check_frames(len(contents), field)
        frames = [
            SentPicture(f"{field}[{index}]", self._checked(content, f"{field}[{index}]"))
            for index, content in enumerate(contents)
        ]
        return self._add_clip(frames, fps)

    def _add(self, picture: SentPicture) -> None:
        self._images += 1
        self.pictures.append(picture)

    def _add_clip(self, frames: Sequence[SentPicture], fps: float) -> list[str]:
        self._frames += len(frames)
        self.pictures += paired(frames)
        return pair_times(len(frames), fps)

    def _frame(self, frame: Any, place: str) -> SentPicture:
        """Return one frame: a URL, or a picture part of any API."""
        if isinstance(frame, dict):
            if "source" in frame:
                return self._block_picture(frame, place)
            if "url" not in frame:
                return self._chat_picture(frame, place)
            frame, place = frame["url"], f"{place}.url"
        return SentPicture(place, self._read_url(frame, place))

    def _chat_picture(self, part: Mapping[str, Any], place: str) -> SentPicture:
        return self._of_url(part, _url_field(part), place)

    def _block_picture(self, block: Mapping[str, Any], place: str) -> SentPicture:
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
                return SentPicture(place, self._read_url(source.get("url"), f"{at}.url"))
            case "file":
                raise InvalidField(f"{at}.file_id", _FILE_ID)
            case _:
                raise InvalidField(f"{at}.type", "must be base64 or url")
        return SentPicture(place, found)

    def _of_url(self, part: Mapping[str, Any], name: str, place: str) -> SentPicture:
        if part.get("file_id") is not None:
            raise InvalidField(f"{place}.file_id", _FILE_ID)
        value, at = part.get(name), f"{place}.{name}"
        detail, of_detail = part.get("detail"), f"{place}.detail"
        if isinstance(value, dict):
            if value.get("detail") is not None:
                detail, of_detail = value["detail"], f"{at}.detail"
            value, at = value.get("url"), f"{at}.url"
        read = read_detail(detail, of_detail)
        return SentPicture(place, self._read_url(value, at), read)

    def check_fetched(self) -> None:
        """Raise PicturesWanted if an address has no content yet."""
        if self._addresses is not None:
            self._addresses.check()

    def _read_url(self, url: Any, place: str) -> bytes | Base64:
        if not isinstance(url, str):
            raise InvalidField(place, "must be a URL: send data:image/png;base64,...")
        if self._addresses is not None and is_address(url):
            return self._addresses.content(url, place)
        return read_url(url, place, self._limits.each.most_bytes)

    def _checked(self, content: bytes, place: str) -> bytes:
        most = self._limits.each.most_bytes
        if not content:
            raise InvalidField(place, "is empty: send the file's bytes")
        if len(content) > most:
            raise PictureTooLarge(
                place, f"has {len(content)} bytes, and {most} are allowed: shrink it"
            )
        return content

    def _check_count(self, place: str) -> None:
        most = self._limits.most_pictures
        if self._images >= most:
            raise PictureTooLarge(
                place, f"is picture {most + 1} of the request, and {most} are allowed: send fewer"
            )

    def _clip_fps(self, kind: str, place: str) -> float:
        """Return the model's frames a second. Raises InvalidField if it reads no clips."""
        if self._fps is None:
            raise InvalidField(
                place,
                f"is of type {kind}, and the model has no video_preprocessor_config.json: send "
                "pictures",
            )
        return self._fps

    def _check_frames(self, frames: int, place: str) -> None:
        most = self._limits.most_frames
        if self._frames + frames > most:
            raise PictureTooLarge(
                place, f"brings the request above {most} frames: send fewer, or a lower fps"
            )


def _url_field(part: Mapping[str, Any]) -> str:
    """Return the name of a part's field with its URL. Qwen's own form has it under `image`."""
    return "image" if part.get("image") is not None else "image_url"
