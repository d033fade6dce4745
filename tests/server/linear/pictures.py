"""Entries for pictures: their parts in every API's form, base64, `data:` URLs, headers of files."""

import base64
import struct
from collections.abc import Callable, Mapping

import numpy as np

from tasuki.model.vision.config import PictureTokens
from tasuki.model.vision.picture_file import PictureBounds
from tasuki.model.vision.processor import ClipRules, PixelRules
from tasuki.proto import inference_pb2 as pb
from tasuki.server.anthropic.conversation import read_conversation
from tasuki.server.auth.tenants import ANONYMOUS
from tasuki.server.errors import ServerError
from tasuki.server.grpc.generate_messages import read_messages
from tasuki.server.openai.messages import read_chat_messages
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.pictures.fetching.addresses import FetchHosts
from tasuki.server.pictures.fetching.request_addresses import RequestAddresses
from tasuki.server.pictures.node_pictures import NodePictures
from tasuki.server.pictures.part_reader import PictureReader, check_part_type, pictures_read
from tasuki.server.pictures.picture_sizes import PictureSizes
from tasuki.server.pictures.sent_picture import Detail, PictureLimits, SentPicture
from tasuki.server.responses.input_items import read_input
from tasuki.server.responses.stored_responses import ResponseStore, StoredItems
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tests.harness.picture_files import picture_file, png_chunk, png_of

from .entries import Entry, Input, Whole

_LIMITS = PictureLimits()
_RULES = PixelRules(16, 2, 2, 65536, 1 << 24, (0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
_IDS = PictureTokens(start=1, end=2, image=3, video=4)
_FOLDER = "server/pictures"
_HEAD = "data:image/png;base64,"
_PNG = picture_file()
_URL = _HEAD + base64.b64encode(_PNG).decode()
_FRAMES = "data:video/jpeg;base64,"
_CLIP = ClipRules(4096, 1 << 24, 2.0, 4, 768, None)


def pictures() -> list[Entry]:
    return [
        Whole(
            "picture of a chat",
            (f"{_FOLDER}/part_reader.py:PictureReader.chat_part",),
            _urls(),
            _refusable(lambda url: _read(lambda reader: reader.chat_part({"image": url}, "a"))),
        ),
        Whole(
            "picture of a message",
            (f"{_FOLDER}/part_reader.py:PictureReader.message_block",),
            _texts(),
            _refusable(lambda text: _read(lambda reader: reader.message_block(_block(text), "a"))),
        ),
        Whole(
            "picture of a response",
            (f"{_FOLDER}/part_reader.py:PictureReader.response_part",),
            {"bytes": _urls()["bytes"], "detail": lambda size: "a" * size},
            _refusable(_read_response),
        ),
        Whole(
            "clip of a request",
            (f"{_FOLDER}/part_reader.py:PictureReader.clip",),
            {
                "frames": lambda size: {"video": [{"image": _URL}] * (size // 300)},
                "one long frame": lambda size: {"video": [_HEAD + "A" * size]},
                "frames in one URL": lambda size: {"video_url": _FRAMES + "A," * (size // 2)},
                "a long frame in a URL": lambda size: {"video_url": {"url": _FRAMES + "A" * size}},
                "a file of video": lambda size: {"video_url": "data:video/mp4;" + "A" * size},
            },
            _refusable(_clip),
        ),
        Whole(
            "address of a picture",
            (f"{_FOLDER}/fetching/request_addresses.py:RequestAddresses.content",),
            {
                "a path": lambda size: "https://a.test/" + "a" * size,
                "a host": lambda size: "https://" + "a." * (size // 2) + "test/",
                "white space": lambda size: "https://a.test/" + " " * size,
                "escapes": lambda size: "https://a.test/" + "%41" * (size // 3),
                "addresses": lambda size: [f"https://a.test/{each}" for each in range(size // 30)],
            },
            _refusable(_addresses),
        ),
        Whole(
            "type of a part",
            (f"{_FOLDER}/part_reader.py:check_part_type",),
            {"one word": lambda size: "a" * size, "a file": lambda size: "file"},
            _refusable(lambda kind: check_part_type(kind, "a")),
        ),
        Whole(
            "header of a picture",
            (f"{_FOLDER}/picture_sizes.py:PictureSizes.measured",),
            _files(),
            _refusable(_measured),
            20 << 20,
        ),
        Whole(
            "parts over gRPC",
            (
                "server/grpc/generate_messages.py:_message",
                f"{_FOLDER}/part_reader.py:PictureReader.file",
                f"{_FOLDER}/part_reader.py:PictureReader.files",
            ),
            {
                "texts": lambda size: _sent(b"", size),
                "pictures": lambda size: _sent(_PNG, size),
                "frames": lambda size: _sent_clip(size // 300),
            },
            _refusable(lambda messages: read_messages(messages, _many())),
        ),
        Whole(
            "pictures of a prompt",
            (f"{_FOLDER}/node_pictures.py:NodePictures.placed",),
            {"pictures": lambda size: size // 300},
            _refusable(_placed),
        ),
        *_conversations(),
    ]


def _sent(file: bytes, size: int) -> pb.Messages:
    """Return a message of texts, each with a picture behind it if a file is given."""
    text, picture = pb.MessagePart(text="so"), pb.MessagePart(picture=pb.Picture(file=file))
    parts = [text, picture] * (size // 300) if file else [text] * (size // 10)
    return pb.Messages(items=[pb.Message(role="user", parts=parts)])


def _sent_clip(count: int) -> pb.Messages:
    part = pb.MessagePart(clip=pb.Clip(frames=[_PNG] * count))
    return pb.Messages(items=[pb.Message(role="user", parts=[part])])


def _clip(fields: dict[str, object]) -> object:
    reader = _many()
    times = reader.clip({"type": "video", **fields}, "a")
    sizes = PictureSizes(_RULES, _many_limits(), cache_bytes=0, clip=_CLIP)
    return times, sizes.measured(b"", reader.pictures[:1])


def _addresses(urls: str | list[str]) -> object:
    addresses = RequestAddresses(FetchHosts.of(["test"]))
    reader = PictureReader(_many_limits(), addresses=addresses)
    for url in [urls] if isinstance(urls, str) else urls:
        reader.chat_part({"image_url": url}, "a")
    return pictures_read(reader)


def _placed(count: int) -> object:
    pictures = NodePictures(_IDS, _RULES, _many_limits())
    rendered = RenderedPrompt(np.array([_IDS.start, _IDS.image, _IDS.end] * count, dtype=np.int32))
    return pictures.placed(rendered, [SentPicture("a", _PNG)] * count, b"", 1 << 30)


def _conversations() -> list[Entry]:
    """Return the entries of messages with many parts."""
    stored = StoredItems(ResponseStore(lambda: 0.0, 1 << 20, 0, 1.0), ANONYMOUS)

    def chat(parts: list[object]) -> object:
        return read_chat_messages(_fields(parts), _many())

    def message(parts: list[object]) -> object:
        return read_conversation(_fields(parts), _many())

    def response(parts: list[object]) -> object:
        items = [{"role": "user", "content": parts}]
        return read_input(items, (), stored, pictures=_many())

    url = _HEAD + base64.b64encode(_PNG).decode()
    picture = {"type": "image_url", "image_url": {"url": url}}
    of_response = {"type": "input_image", "image_url": url}
    block = {"type": "image", **_block(url.removeprefix(_HEAD))}
    return [
        Whole(
            "chat with pictures",
            ("server/openai/messages.py:read_chat_messages",),
            _parts(picture),
            _refusable(chat),
        ),
        Whole(
            "message with pictures",
            ("server/anthropic/conversation.py:read_conversation",),
            _parts(block),
            _refusable(message),
        ),
        Whole(
            "response with pictures",
            ("server/responses/input_items.py:read_input",),
            _parts(of_response),
            _refusable(response),
        ),
    ]


def _fields(parts: list[object]) -> RequestFields:
    return RequestFields({"messages": [{"role": "user", "content": parts}]})


def _many() -> PictureReader:
    return PictureReader(_many_limits(), fps=_CLIP.fps)


def _many_limits() -> PictureLimits:
    return PictureLimits(most_pictures=1 << 30, most_frames=1 << 30, most_pixels=1 << 60)


def _parts(picture: dict[str, object]) -> Mapping[str, Input]:
    text = {"type": "text", "text": "so"}
    size_of = 300
    return {
        "texts": lambda size: [text] * (size // 30),
        "pictures": lambda size: [picture] * (size // size_of),
        "texts between pictures": lambda size: [text, picture] * (size // size_of),
        "clips": lambda size: [{"type": "video", "video": [_URL]}] * (size // size_of),
        "other parts": lambda size: [text] * (size // 30) + [{"type": "input_video"}],
    }


def _read(ask: Callable[[PictureReader], None], limits: PictureLimits = _LIMITS) -> None:
    reader = PictureReader(limits)
    ask(reader)
    for picture in reader.pictures:
        PictureSizes(_RULES, limits, cache_bytes=0).measured(b"", [picture])


def _read_response(url: str) -> None:
    part = {"image_url": url} if url.startswith("data:") else {"image_url": "a", "detail": url}
    # Within these limits, all but the smallest are refused by their length.
    limits = PictureLimits(each=PictureBounds(most_bytes=1000))
    _read(lambda reader: reader.response_part(part, "a"), limits)


def _measured(content: bytes) -> None:
    # Without a cache: otherwise a second measurement would not do the same work.
    sizes = PictureSizes(_RULES, _LIMITS, cache_bytes=0)
    sizes.measured(b"", [SentPicture("a", content, Detail.AUTO)])


def _refusable(read: Callable[..., object]) -> Callable[..., object]:
    def refusing(made: object) -> object:
        try:
            return read(made)
        except ServerError:
            # A refusal may cost no more than an answer.
            return None

    return refusing


def _block(text: str) -> dict[str, object]:
    return {"source": {"type": "base64", "media_type": "image/png", "data": text}}


def _texts() -> Mapping[str, Input]:
    def encoded(size: int) -> str:
        return base64.b64encode(_PNG + bytes(size * 3 // 4)).decode()

    return {
        "bytes": encoded,
        "lines": lambda size: encoded(size).replace("AAAA" * 19, "AAAA" * 18 + "A\r\nAAA"),
        "white space": lambda size: " " * size,
        "letters and spaces": lambda size: "A " * (size // 2),
        "no base64": lambda size: "%" * size,
        "padding": lambda size: "=" * size,
        "halves of characters": lambda size: "\ud83d" * size,
        "bytes of no picture": lambda size: "A" * size,
    }


def _urls() -> Mapping[str, Input]:
    def of(make: Input) -> Input:
        return lambda size: _HEAD + make(size)

    return {
        **{name: of(make) for name, make in _texts().items()},
        "no comma": lambda size: "data:" + "a" * size,
        "parameters": lambda size: "data:" + ";a=b" * (size // 4) + ",",
        "a scheme": lambda size: "a" * size + ":",
        "a media type": lambda size: f"data:{'a' * size},",
    }


def _files() -> Mapping[str, Input]:
    """Return files that are long in one part of their format."""
    text, empty = png_chunk(b"tEXt", b"a\0b"), png_chunk(b"IDAT", b"")
    comment = b"\xff\xfe" + struct.pack(">H", 4) + b"ab"
    extension = b"!\xfe\x01a\x00"

    def riff(body: bytes) -> bytes:
        return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body

    return {
        "pixels": lambda size: png_of(640, 480, png_chunk(b"IDAT", bytes(size))),
        "chunks": lambda size: png_of(640, 480, *[text] * (size // len(text))),
        "empty chunks": lambda size: png_of(640, 480, *[empty] * (size // len(empty))),
        "one chunk": lambda size: png_of(640, 480, png_chunk(b"prVt", bytes(size))),
        "a text": lambda size: png_of(640, 480, png_chunk(b"tEXt", b"a\0" + b"b" * size)),
        "facts behind pixels": lambda size: png_of(
            640, 480, png_chunk(b"IDAT", bytes(size)), png_chunk(b"eXIf", b"MM\0*" + bytes(8))
        ),
        "comments": lambda size: b"\xff\xd8" + comment * (size // len(comment)) + b"\xff\xd9",
        "filling": lambda size: b"\xff\xd8" + b"\xff" * size,
        "no markers": lambda size: b"\xff\xd8\xff\xe0\x00\x02" + bytes(size),
        "extensions": lambda size: (
            b"GIF89a" + struct.pack("<HHBBB", 640, 480, 0, 0, 0) + extension * (size // 5)
        ),
        "parts": lambda size: riff((b"abcd" + struct.pack("<I", 0)) * (size // 8)),
        "zeros": lambda size: bytes(size),
    }
