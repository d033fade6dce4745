"""Tests of whole conversations with pictures, in each API's form: the same messages and pictures.

Without a reader of pictures each API refuses them, as its door does today.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from tasuki.server.anthropic.conversation import read_conversation
from tasuki.server.auth.tenants import ANONYMOUS
from tasuki.server.errors import InvalidField
from tasuki.server.openai.messages import read_chat_messages
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.pictures.part_reader import PictureReader
from tasuki.server.pictures.sent_picture import PictureLimits
from tasuki.server.responses.input_items import read_input
from tasuki.server.responses.stored_responses import ResponseStore, StoredItems
from tasuki.server.text.chat_message import ChatMessage
from tests.harness.http_fixtures import HttpFront
from tests.harness.picture_files import data_url, picture_file

FILES = [picture_file(40 + 8 * index, 30) for index in range(3)]
URLS = [data_url(file) for file in FILES]
STORED = StoredItems(ResponseStore(lambda: 0.0, 1 << 20, 0, 1.0), ANONYMOUS)

Read = Callable[[Any, PictureReader | None], Sequence[ChatMessage]]


def read_chats(body: Any, pictures: PictureReader | None) -> Sequence[ChatMessage]:
    return read_chat_messages(RequestFields({"messages": body}), pictures)


def read_messages(body: Any, pictures: PictureReader | None) -> Sequence[ChatMessage]:
    return read_conversation(RequestFields({"messages": body}), pictures).messages


def read_responses(body: Any, pictures: PictureReader | None) -> Sequence[ChatMessage]:
    return read_input(body, (), STORED, pictures=pictures)


def _chat_part(index: int) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": URLS[index]}}


def _block(index: int) -> dict[str, Any]:
    data = URLS[index].partition(",")[2]
    return {
        "type": "image",
        "source": {"type": "base64", "media_type": "image/png", "data": data},
    }


def _response_part(index: int) -> dict[str, Any]:
    return {"type": "input_image", "image_url": URLS[index], "detail": "auto"}


def _text(text: str, kind: str = "text") -> dict[str, Any]:
    return {"type": kind, "text": text}


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHAT = [
    {"role": "user", "content": [_text("see "), _chat_part(0), _text("this")]},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": [_chat_part(1)]},
    {"role": "user", "content": [_chat_part(2), _text("and?")]},
]
MESSAGES = [
    {"role": "user", "content": [_text("see "), _block(0), _text("this")]},
    {
        "role": "assistant",
        "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}],
    },
    {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "c", "content": [_block(1)]},
            _block(2),
            _text("and?"),
        ],
    },
]
RESPONSES = [
    {
        "role": "user",
        "content": [_text("see ", "input_text"), _response_part(0), _text("this", "input_text")],
    },
    {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "c", "output": [_response_part(1)]},
    {"role": "user", "content": [_response_part(2), _text("and?", "input_text")]},
]
PLACES = {
    "chats": [f"messages[{index}]" for index in ("0].content[1", "2].content[0", "3].content[0")],
    "messages": [
        "messages[0].content[1]",
        "messages[2].content[0].content[0]",
        "messages[2].content[1]",
    ],
    "responses": ["input[0].content[1]", "input[2].output[0]", "input[3].content[0]"],
}
APIS: dict[str, tuple[Read, Any]] = {
    "chats": (read_chats, CHAT),
    "messages": (read_messages, MESSAGES),
    "responses": (read_responses, RESPONSES),
}


@pytest.mark.parametrize("api", APIS)
def test_pictures_are_read_at_their_places(api: str) -> None:
    read, body = APIS[api]
    reader = PictureReader(PictureLimits())
    messages = read(body, reader)
    shown = [(one.role, one.content, one.pictures) for one in messages if one.role != "assistant"]
    assert shown == [
        ("user", "see this", (4,)),
        ("tool", "", (0,)),
        ("user", "and?", (0,)),
    ]
    assert [one.content for one in reader.pictures] == FILES
    assert [one.place for one in reader.pictures] == PLACES[api]


@pytest.mark.parametrize("api", APIS)
def test_without_a_reader_pictures_are_refused_by_their_place(api: str) -> None:
    read, body = APIS[api]
    with pytest.raises(InvalidField, match="is of type") as refused:
        read(body, None)
    assert PLACES[api][0] in str(refused.value)


@pytest.mark.parametrize("api", APIS)
def test_a_reader_changes_no_conversation_of_text(api: str) -> None:
    texts = {
        "chats": [
            {"role": "system", "content": "be short"},
            {"role": "user", "content": [_text("a"), "b"]},
            {"role": "assistant", "content": [_text("c")]},
            {"role": "system", "content": "so"},
            {"role": "user", "content": ""},
        ],
        "messages": [
            {"role": "user", "content": []},
            {"role": "assistant", "content": [_text("c")]},
            {
                "role": "user",
                "content": [
                    _text("a"),
                    {"type": "tool_result", "tool_use_id": "c"},
                    {"type": "tool_result", "tool_use_id": "d", "content": "e"},
                    _text(""),
                ],
            },
        ],
        "responses": [
            {"role": "user", "content": [_text("a", "input_text"), _text("b", "input_text")]},
            {"role": "assistant", "content": [_text("c", "output_text")]},
            {"type": "function_call_output", "call_id": "c", "output": [_text("d")]},
            {"type": "function_call_output", "call_id": "c", "output": {"e": 1}},
            {"role": "user", "content": "f"},
        ],
    }
    read = APIS[api][0]
    reader = PictureReader(PictureLimits())
    with_reader, without = read(texts[api], reader), read(texts[api], None)
    assert with_reader == without and not reader.pictures
    assert not any(one.pictures for one in with_reader)


@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
def test_chats_show_pictures_of_users_and_tools_alone(role: str) -> None:
    body = [
        {"role": "user", "content": "?"},
        {"role": role, "content": [_chat_part(0)]},
        {"role": "user", "content": "?"},
    ]
    with pytest.raises(InvalidField, match="image_url") as refused:
        read_chats(body, PictureReader(PictureLimits()))
    assert refused.value.field == "messages[1].content[0]"


@pytest.mark.parametrize(
    ("api", "part"),
    [
        ("chats", {"type": "video_url", "video_url": {"url": "data:"}}),
        ("chats", {"type": "file", "file": {"file_id": "f"}}),
        ("messages", {"type": "document", "source": {}}),
        ("responses", {"type": "input_file", "file_id": "f"}),
    ],
)
def test_files_and_videos_are_refused_by_name(api: str, part: dict[str, Any]) -> None:
    body = [{"role": "user", "content": [part]}]
    with pytest.raises(InvalidField, match=str(part["type"])):
        APIS[api][0](body, PictureReader(PictureLimits()))


def test_doors_still_refuse_pictures(http: HttpFront) -> None:
    asked = {
        "/v1/chat/completions": {"messages": CHAT},
        "/v1/messages": {"messages": MESSAGES, "max_tokens": 5},
        "/v1/responses": {"input": RESPONSES},
    }
    for path, body in asked.items():
        reply = http.post(path, body)
        assert reply.status == 400 and "is of type" in str(reply.json)
