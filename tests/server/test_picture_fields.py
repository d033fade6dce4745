"""Tests of the declared schemas of picture parts against their reader, in the form of each API."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import jsonschema
import pytest

from tasuki.server.errors import InvalidField
from tasuki.server.openapi.anthropic_fields import MESSAGE
from tasuki.server.openapi.common_fields import Schema
from tasuki.server.openapi.openai_fields import CHAT
from tasuki.server.openapi.picture_fields import (
    DETAILS,
    PICTURE_OF_CHATS,
    PICTURE_OF_RESPONSES,
    SOURCE_OF_MESSAGES,
    VIDEO,
)
from tasuki.server.openapi.responses_fields import RESPONSE
from tasuki.server.pictures.part_reader import PictureReader
from tasuki.server.pictures.sent_picture import Detail, PictureLimits
from tests.harness.picture_files import data_url, picture_file

URL = data_url(picture_file())
DATA = URL.partition(",")[2]
Read = Callable[[PictureReader, Any], None]


def chat(reader: PictureReader, part: Any) -> None:
    reader.chat_part(part, "p")


def response(reader: PictureReader, part: Any) -> None:
    reader.response_part(part, "p")


def block(reader: PictureReader, source: Any) -> None:
    reader.message_block({"type": "image", "source": source}, "p")


VALUES: tuple[Any, ...] = (URL, {"url": URL}, {"url": URL, "detail": "low"})
BAD: tuple[Any, ...] = (
    *(7, [], {}, {"url": 3}, "no url", "file:///etc/passwd", {"url": "ftp://a"}),
    {"url": URL, "detail": 7},
)
OF_CHATS = [
    *({"type": "image_url", "image_url": value} for value in (*VALUES, *BAD)),
    *({"type": "image", "image": value} for value in (*VALUES, *BAD)),
    *({"type": "input_image", "image_url": URL, "detail": detail} for detail in (*DETAILS, "x", 1)),
    {"type": "image_url", "image": URL, "image_url": "not read"},
    {"type": "image", "image": None, "image_url": URL},
    {"type": "image_url"},
    {"type": "image_url", "image_url": URL, "file_id": "file-1"},
    {"type": "image_url", "image_url": URL, "file_id": None},
]
OF_RESPONSES = [
    *({"type": "input_image", "image_url": value} for value in (*VALUES, *BAD)),
    {"type": "input_image", "image_url": URL, "detail": None},
    {"type": "input_image", "image_url": URL, "detail": "best"},
    {"type": "input_image", "file_id": "file-1"},
    {"type": "input_image"},
]
OF_MESSAGES = [
    {"type": "base64", "media_type": "image/png", "data": DATA},
    {"type": "base64", "media_type": "IMAGE/PNG", "data": DATA},
    {"type": "base64", "media_type": "application/pdf", "data": DATA},
    {"type": "base64", "media_type": "", "data": DATA},
    {"type": "base64", "data": DATA},
    {"type": "base64", "media_type": "image/png", "data": 7},
    {"type": "url", "url": URL},
    *({"type": "url", "url": value} for value in BAD),
    {"type": "file", "file_id": "file-1"},
    {"type": "odd"},
    None,
]


def video(reader: PictureReader, part: Any) -> None:
    reader.clip(part, "p")


JPEGS = "data:video/jpeg;base64," + DATA
FRAMES: tuple[Any, ...] = (
    *(URL, {"url": URL}, {"url": URL, "detail": 7}, {"type": "odd", "image_url": {"url": URL}}),
    *({"image": URL, "detail": "low"}, {"image": URL, "detail": 7}, {"image": None}),
    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": DATA}},
    *({"source": {"type": "url", "url": URL}}, {"source": None, "url": URL}, {"url": None}),
    *({"url": 7, "image_url": URL}, {"image_url": URL, "file_id": "file-1"}, 7, "no url"),
)
OF_VIDEOS = [
    *({"type": "video", "video": [URL, frame]} for frame in FRAMES),
    *({"type": "video", "video": value} for value in ([], URL, {"url": URL}, None, 7)),
    *(
        {"type": "video", "video": [URL], "fps": fps}
        for fps in (None, 2, 0.5, 1000, 0, -1, 1001, "2", True)
    ),
    *({"type": "video", "video": [URL], "detail": detail} for detail in (None, "low", "best")),
    *(
        {"type": "video_url", "video_url": value}
        for value in (JPEGS, {"url": JPEGS}, f"{JPEGS},{DATA}", "data:video/mp4;base64,AAAA", 7)
    ),
    {"type": "video_url", "video_url": JPEGS, "video": [URL]},
    {"type": "video_url", "video_url": JPEGS, "video": 7},
    {"type": "video_url"},
]
CASES = [
    *((VIDEO, video, part) for part in OF_VIDEOS),
    *((PICTURE_OF_CHATS, chat, part) for part in OF_CHATS),
    *((PICTURE_OF_RESPONSES, response, part) for part in OF_RESPONSES),
    *((SOURCE_OF_MESSAGES, block, source) for source in OF_MESSAGES),
]


@pytest.mark.parametrize(("schema", "read", "part"), CASES)
def test_what_is_declared_is_what_is_read(schema: Schema, read: Read, part: Any) -> None:
    try:
        # The reader moves the data of a chat's part.
        read(PictureReader(PictureLimits(), fps=2.0), deepcopy(part))
    except InvalidField as error:
        is_read = False
        assert str(error).startswith("p")
    else:
        is_read = True
    assert jsonschema.Draft202012Validator(schema).is_valid(part) is is_read


def test_each_detail_is_declared() -> None:
    assert {*DETAILS} == {detail.value for detail in Detail}


def message(role: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"role": role, "content": [content]}


PART = {"type": "image_url", "image_url": {"url": URL}}
BLOCK = {"type": "image", "source": {"type": "url", "url": URL}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": [BLOCK]}
CLIP = {"type": "video", "video": [URL, URL], "fps": 1}
SHOWN = {"type": "tool_result", "tool_use_id": "t", "content": [CLIP]}
ITEM = {"type": "input_image", "image_url": URL}
OUTPUT = {"type": "function_call_output", "output": [ITEM]}
PLACES: list[tuple[Schema, dict[str, Any], bool]] = [
    *(
        (CHAT, {"messages": [message(role, PART)]}, role in ("user", "tool"))
        for role in ("user", "tool", "system", "developer", "assistant")
    ),
    *(
        (MESSAGE, {"max_tokens": 1, "messages": [message(role, BLOCK)]}, role == "user")
        for role in ("user", "assistant", "system")
    ),
    (MESSAGE, {"max_tokens": 1, "messages": [message("user", RESULT)]}, True),
    *(
        (RESPONSE, {"input": [message(role, ITEM)]}, role == "user")
        for role in ("user", "assistant", "system", "developer")
    ),
    (RESPONSE, {"input": [OUTPUT]}, True),
    *((CHAT, {"messages": [message(role, CLIP)]}, role == "user") for role in ("user", "system")),
    (MESSAGE, {"max_tokens": 1, "messages": [message("user", CLIP)]}, True),
    (MESSAGE, {"max_tokens": 1, "messages": [message("user", SHOWN)]}, True),
    *((RESPONSE, {"input": [message(role, CLIP)]}, role == "user") for role in ("user", "system")),
]


@pytest.mark.parametrize(("schema", "body", "is_valid"), PLACES)
def test_pictures_are_declared_where_they_are_read(
    schema: Schema, body: dict[str, Any], is_valid: bool
) -> None:
    assert jsonschema.Draft202012Validator(schema).is_valid(body) is is_valid
