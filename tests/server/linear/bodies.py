"""Entries for bodies sent by a caller: bodies of every API, each with one growing part."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from unittest.mock import Mock

import numpy as np
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tasuki.engine.messages import RequestId
from tasuki.server.anthropic.routes import count_message_tokens, read_message_request
from tasuki.server.auth.callers import NOBODY
from tasuki.server.auth.limits import HeldBytes, Hold
from tasuki.server.auth.tenants import ANONYMOUS, RequestContext
from tasuki.server.errors import ServerError
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.headers import rename_request
from tasuki.server.openai.chat import read_chat
from tasuki.server.openai.completions import read_completion, read_prompt
from tasuki.server.openai.generation import ServedModel
from tasuki.server.openai.request_fields import RequestFields, read_fields
from tasuki.server.openai.routes import detokenized, tokenized
from tasuki.server.responses.asked_turn import PromptSettings
from tasuki.server.responses.conversations import Conversation, checked_items
from tasuki.server.responses.endpoints.compaction import read_compact_request
from tasuki.server.responses.endpoints.response_socket import SocketTurns, read_create
from tasuki.server.responses.input_items import compaction_item
from tasuki.server.responses.response_request import count_response_tokens, read_response_request
from tasuki.server.responses.stored_responses import (
    ResponseStore,
    StoredItems,
    StoredResponse,
    TurnRecord,
)
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.rendering.chat_template import ChatTemplate
from tasuki.server.text.text_answer import Content
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import Tokenizer
from tests.harness.grpc_fixtures import write_tokenizer

from .entries import Entry, Input, Whole, some
from .shapes import TEXTS, repeated

_TEMPLATES = Path(__file__).parents[2] / "harness" / "qwen_templates"
_CONTEXT = 1 << 18
Body: TypeAlias = Mapping[str, Any]

_STORED = "resp_" + "a" * 32
_NAMED = "conv_a"
_NOTHING = PromptSettings(None, [], {})
_ASKED: Body = {"messages": [{"role": "user", "content": "?"}]}
# Shapes hard for any reader, in any field.
_HARD = some(
    *("one word", "white space", "lines", "emoji", "halves of characters", "private marks"),
    *("escapes", "half names", "slashes", "digits", "groups", "dollars", "zeros in an escape"),
)
# Shapes hard for a reader of JSON in a string.
JSON_SHAPES = some(
    *("open brackets", "open braces", "pairs of brackets", "closed brackets", "quotes"),
    *("empty strings", "escapes", "escaped quotes", "escapes of halves", "keys", "commas"),
    *("white space", "digits", "one word", "halves of characters"),
)


@dataclass(frozen=True)
class Served:
    """Two served models. in_tags: its template teaches calls between tags. in_json: its template
    teaches calls in JSON."""

    in_tags: ServedModel
    in_json: ServedModel

    @staticmethod
    def of(folder: Path) -> "Served":
        """Return the models. folder: an empty folder for a tokenizer's file."""
        write_tokenizer(folder)
        tokenizer = Tokenizer.load(folder)
        assert tokenizer is not None
        return Served(_model(tokenizer, "qwen3_5_think.jinja"), _model(tokenizer, "qwen3.jinja"))


def _model(tokenizer: Tokenizer, template: str) -> ServedModel:
    source = (_TEMPLATES / template).read_text(encoding="utf-8")
    # Without a cache: otherwise a second measurement would not do the same work.
    shown = ChatTemplate(source, tokenizer, {}, cache_bytes=0)
    codec = TextCodec(320, _CONTEXT, tokenizer, shown)
    return ServedModel("model", 0, _CONTEXT, codec)


def bodies(served: Served) -> list[Entry]:
    chat = _reader(read_chat, served.in_tags)
    in_json = _reader(read_chat, served.in_json)
    completion = _reader(read_completion, served.in_tags)
    message = _reader(read_message_request, served.in_tags)
    counted = _reader(count_message_tokens, served.in_tags)
    store = ResponseStore(lambda: 0.0, 1 << 20, 0, 1.0)
    store.put(RequestContext(NOBODY), _stored())

    def of_response(model: ServedModel, request: web.Request, fields: RequestFields) -> object:
        return read_response_request(model, store, request, fields)

    def counted_response(model: ServedModel, request: web.Request, fields: RequestFields) -> object:
        return count_response_tokens(model, store, request, fields)

    def compacted(model: ServedModel, request: web.Request, fields: RequestFields) -> object:
        return read_compact_request(model, store, request, fields)

    def of_items(model: ServedModel, request: web.Request, fields: RequestFields) -> object:
        return checked_items(fields.get("input"), StoredItems(store, RequestContext(NOBODY)))

    kept = checked_items([{"role": "user", "content": "?"}] * 2, StoredItems(store, ANONYMOUS))
    named = Conversation(_NAMED, 0, {"a": "b"}, kept)
    store.put(RequestContext(NOBODY), named)
    turns = SocketTurns(store, Hold(HeldBytes(), NOBODY))

    def of_message(model: ServedModel, request: web.Request, fields: RequestFields) -> object:
        return read_create(model, turns, request, fields)

    response = _reader(of_response, served.in_tags)
    chats = "server/openai/chat.py:read_chat"
    return [
        Whole("chat, content", (chats,), _filled(TEXTS, _content), chat),
        Whole("chat, continued", (chats,), _filled(some("one word"), _continued), chat),
        Whole("chat, unknown fields", (chats,), _unknown(), chat),
        Whole("chat, arguments", (chats,), _filled(JSON_SHAPES, _arguments), chat),
        Whole("chat, messages", (chats,), _conversations(), chat),
        Whole("chat, a tool's texts", (chats,), _filled(_HARD, _tool_texts), chat),
        Whole("chat, tools", (chats,), _tools(), chat),
        Whole("chat, strict tools", (chats,), _schemas(), chat),
        Whole("chat, strict tools in JSON", (chats,), _schemas(), in_json),
        Whole("chat, patterns", (chats,), _filled(_HARD, _pattern), chat),
        Whole("chat, grammars", (chats,), _grammars(), chat),
        Whole("chat, texts of grammars", (chats,), _filled(JSON_SHAPES, _schema_text), chat),
        Whole("chat, structural tags", (chats,), _tags(), chat),
        Whole("chat, sampling", (chats,), _samplings(), chat),
        Whole("chat, other fields", (chats,), _others(), chat),
        Whole(
            "completion",
            ("server/openai/completions.py:read_completion",),
            {**_filled(_HARD, lambda text: {"prompt": text}), **_prompts()},
            completion,
        ),
        Whole(
            "message",
            ("server/anthropic/routes.py:read_message_request",),
            {**_filled(_HARD, _message), **_messages(), **_message_tools()},
            message,
        ),
        Whole(
            "message, counted",
            ("server/anthropic/routes.py:count_message_tokens",),
            _filled(some("one word"), _message),
            counted,
        ),
        Whole(
            "tokenized",
            ("server/openai/routes.py:tokenized",),
            {
                **_filled(some("one word", "emoji"), _named_tokens),
                **_filled(some("words"), _content),
            },
            _reader(tokenized, served.in_tags),
        ),
        Whole(
            "detokenized",
            ("server/openai/routes.py:detokenized",),
            {"ids": lambda size: _encoded({"tokens": [7] * (size // 3)})},
            _reader(lambda model, _, fields: detokenized(model.codec, fields), served.in_tags),
        ),
        Whole(
            "one prompt",
            ("server/openai/completions.py:read_prompt",),
            _filled(some("one word", "emoji"), lambda text: {"prompt": text}),
            _reader(lambda model, _, fields: read_prompt(fields, model.codec), served.in_tags),
        ),
        Whole(
            "response in JSON",
            ("server/responses/response_request.py:read_response_request",),
            _response_tools(),
            _reader(of_response, served.in_json),
        ),
        Whole(
            "response",
            ("server/responses/response_request.py:read_response_request",),
            {**_filled(JSON_SHAPES, _function_call), **_items(), **_response_tools()},
            response,
        ),
        Whole(
            "response, compacted",
            ("server/responses/endpoints/compaction.py:read_compact_request",),
            {**_filled(some("one word", "emoji"), _function_call), **_items()},
            _reader(compacted, served.in_tags),
        ),
        Whole(
            "message on a socket",
            ("server/responses/endpoints/response_socket.py:read_create",),
            _messages_on_sockets(),
            _reader(of_message, served.in_tags),
        ),
        Whole(
            "items of a conversation",
            ("server/responses/conversations.py:checked_items",),
            _items(),
            _reader(of_items, served.in_tags),
        ),
        Whole(
            "response of a conversation",
            ("server/responses/response_request.py:read_response_request",),
            _growing({"texts": lambda size: {"input": "a" * size, "conversation": _NAMED}}),
            response,
        ),
        Whole(
            "response, counted",
            ("server/responses/response_request.py:count_response_tokens",),
            _filled(some("one word"), lambda text: {"input": text}),
            _reader(counted_response, served.in_tags),
        ),
    ]


def _stored() -> StoredResponse:
    """Return a stored response for a later response to continue."""
    record = TurnRecord(np.array([7], dtype=np.int32), (ChatMessage("user", "?"),), _NOTHING.digest)
    record.add(Content("it was"))
    return StoredResponse(_STORED, b'{"output": []}', record.turn())


Read: TypeAlias = Callable[[ServedModel, web.Request, RequestFields], object]


def _reader(read: Read, model: ServedModel) -> Callable[[bytes], object]:
    request = make_mocked_request("POST", "/", app=Mock())
    rename_request(request, RequestId("a"))

    def of_body(body: bytes) -> object:
        try:
            return read(model, request, read_fields(bytearray(body)))
        except (ServerError, HttpRefusal):
            # A refusal may cost no more than an answer.
            return None

    return of_body


def _encoded(body: Body) -> bytes:
    return json.dumps(body, ensure_ascii=True).encode()


def _filled(
    texts: Mapping[str, Callable[[int], str]], body: Callable[[str], Body]
) -> Mapping[str, Input]:
    def of(make: Callable[[int], str]) -> Input:
        return lambda size: _encoded(body(make(size)))

    return {name: of(make) for name, make in texts.items()}


def _growing(bodies: Mapping[str, Callable[[int], Body]]) -> Mapping[str, Input]:
    def of(make: Callable[[int], Body]) -> Input:
        return lambda size: _encoded(make(size))

    return {name: of(make) for name, make in bodies.items()}


def _content(text: str) -> Body:
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}


def _named_tokens(text: str) -> Body:
    return {"prompt": text, "return_token_strs": True}


def _continued(text: str) -> Body:
    return {**_content(text), "continue_final_message": True, "add_generation_prompt": False}


def _unknown() -> Mapping[str, Input]:
    def many(size: int) -> Body:
        return {**_ASKED, **{f"field{number}": 1 for number in range(size // 16)}}

    def one(size: int) -> Body:
        return {**_ASKED, "f" * size: 1}

    return _growing({"many": many, "one": one})


def _arguments(text: str) -> Body:
    call = {"type": "function", "function": {"name": "f", "arguments": text}}
    return {
        "messages": [
            {"role": "user", "content": "?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": "!"},
        ]
    }


def _conversations() -> Mapping[str, Input]:
    def many(role: str, **more: Any) -> Callable[[int], Body]:
        def body(size: int) -> Body:
            count = min(size // 60 + 1, 4096)
            first = {
                "role": "user",
                "content": "a" * (size - 60 * count if size > 60 * count else 1),
            }
            return {"messages": [first] + [{"role": role, "content": "so", **more}] * (count - 1)}

        return body

    def turns(size: int) -> Body:
        count = min(size // 200 + 1, 1300)
        call = {"type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
        turn = [
            {"role": "user", "content": "a" * (size // count // 2)},
            {"role": "assistant", "reasoning_content": "so", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": "!"},
        ]
        return {"messages": turn * count}

    def calls(size: int) -> Body:
        call = {"type": "function", "function": {"name": "f", "arguments": "{}"}}
        asked = {"role": "assistant", "tool_calls": [call] * (size // 80)}
        return {"messages": [{"role": "user", "content": "?"}, asked, {"role": "tool"}]}

    def parts(size: int) -> Body:
        part = {"type": "text", "text": "a"}
        return {"messages": [{"role": "user", "content": [part] * (size // 40)}]}

    return _growing(
        {
            "users": many("user"),
            "assistants": many("assistant", reasoning_content="so"),
            "systems": many("system"),
            "tools": many("tool"),
            "turns": turns,
            "calls": calls,
            "parts": parts,
        }
    )


def _with_tool(parameters: Any, **more: Any) -> Body:
    function = {"name": "f", "parameters": parameters, "strict": True}
    return {**_ASKED, "tools": [{"type": "function", "function": function}], **more}


def _tool_texts(text: str) -> Body:
    function = {"name": text, "description": text, "parameters": {"title": text}}
    return {**_ASKED, "tools": [{"type": "function", "function": function}]}


def _tools() -> Mapping[str, Input]:
    def many(size: int) -> Body:
        tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
        return {**_ASKED, "tools": [tool] * (size // 70)}

    def strict(size: int) -> Body:
        count = min(size // 120, 1024)
        function = {"name": "f" * (size // 120 // 8 + 1), "strict": True, "parameters": {}}
        tools = [{"type": "function", "function": function}] * count
        return {**_ASKED, "tools": tools, "tool_choice": "required"}

    def allowed(size: int) -> Body:
        named = [
            {"type": "function", "function": {"name": f"f{number}"}} for number in range(size // 60)
        ]
        chosen = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": named}}
        return {**_with_tool({}), "tool_choice": chosen}

    return _growing({"many": many, "strict": strict, "allowed": allowed})


def _schemas() -> Mapping[str, Input]:
    """Return shapes of bodies with a growing schema of a tool's parameters, under a forced call."""

    def forced(parameters: Callable[[int], Any]) -> Callable[[int], Body]:
        return lambda size: _with_tool(parameters(size), tool_choice="required")

    def properties(size: int) -> Any:
        return {"properties": {f"k{number}": {"type": "string"} for number in range(size // 30)}}

    def numbers(size: int) -> Any:
        return {"properties": {f"k{number}": {"type": "number"} for number in range(size // 30)}}

    def required(size: int) -> Any:
        return {"required": [f"k{number}" for number in range(size // 12)]}

    def both(size: int) -> Any:
        names = [f"k{number}" for number in range(size // 40)]
        return {"properties": {name: {"type": "string"} for name in names}, "required": names}

    def values(size: int) -> Any:
        return {"properties": {"a": {"enum": [f"v{number}" for number in range(size // 10)]}}}

    def branches(size: int) -> Any:
        return {"properties": {"a": {"anyOf": [{"type": "string"}] * (size // 20)}}}

    def definitions(size: int) -> Any:
        # Half of the size is in the definitions, half in the parameters able to refer to them.
        names = [f"k{number}" for number in range(size // 60)]
        return {
            "$defs": {"d": {"description": "a" * (size // 2)}},
            "properties": {name: {"type": "integer"} for name in names},
        }

    def references(size: int) -> Any:
        # Every parameter refers to the same long definition.
        reference = {"$ref": "#/$defs/d"}
        named = {f"d{number}": number for number in range(size // 24)}
        return {
            "$defs": {"d": {"type": "string", "x": 1, **named}},
            "properties": {f"k{number}": reference for number in range(size // 80)},
        }

    def fan(size: int) -> Any:
        # Each of four definitions refers to the next by every one of its branches.
        each = max(1, size // 4 // 26)
        chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * each} for at in range(4)}
        last = {"d4": {"type": "string"}}
        return {"$defs": {**chain, **last}, "properties": {"a": {"$ref": "#/$defs/d0"}}}

    def doubling(size: int) -> Any:
        # Each definition refers twice to the next.
        count = max(1, size // 80)
        chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(count)}
        last = {f"d{count}": {"type": "string"}}
        return {"$defs": {**chain, **last}, "properties": {"a": {"$ref": "#/$defs/d0"}}}

    def itself(size: int) -> Any:
        each = max(1, size // 26)
        return {
            "$defs": {"d": {"anyOf": [{"$ref": "#/$defs/d"}] * each}},
            "properties": {"a": {"$ref": "#/$defs/d"}},
        }

    def shared(size: int) -> Any:
        # Every parameter refers to the same fan, each with a separate keyword.
        chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 6} for at in range(4)}
        names = [f"k{number}" for number in range(size // 40)]
        properties = {name: {"$ref": "#/$defs/d0", "x": 1} for name in names}
        return {"$defs": {**chain, "d4": {"type": "integer"}}, "properties": properties}

    def formats(size: int) -> Any:
        names = [f"k{number}" for number in range(size // 40)]
        return {"properties": {name: {"type": "integer", "format": name} for name in names}}

    def lengths(size: int) -> Any:
        names = [f"k{number}" for number in range(size // 60)]
        return {"properties": {name: {"type": "string", "maxLength": 9} for name in names}}

    def behind(size: int) -> Any:
        names = [f"k{number}" for number in range(size // 30)]
        inner = {"properties": {name: {"type": "string"} for name in names}, "required": names[:1]}
        branches = [{"$ref": "#/$defs/d"}, {"properties": {"a": {}}}]
        return {"$defs": {"d": inner}, "allOf": [{"anyOf": branches}, {"$ref": "#/$defs/d"}]}

    def path(size: int) -> Any:
        return {"properties": {"a": {"$ref": "#" + "/a" * (size // 2)}}}

    grown = {
        "properties": properties,
        "numbers": numbers,
        "required": required,
        "required properties": both,
        "values": values,
        "branches": branches,
        "definitions": definitions,
        "references": references,
        "a fan of references": fan,
        "references that double": doubling,
        "references to itself": itself,
        "references to one fan": shared,
        "formats": formats,
        "lengths": lengths,
        "properties behind references": behind,
        "a reference's path": path,
    }
    return _growing({name: forced(make) for name, make in grown.items()})


def _pattern(text: str) -> Body:
    properties = {"a": {"type": "string", "pattern": text}}
    return _with_tool({"properties": properties}, tool_choice="required")


def _schema_text(text: str) -> Body:
    return {**_ASKED, "guided_json": text}


def _grammars() -> Mapping[str, Input]:
    def schema(size: int) -> Body:
        made = {"properties": {f"k{number}": {} for number in range(size // 15)}}
        return {
            **_ASKED,
            "response_format": {"type": "json_schema", "json_schema": {"schema": made}},
        }

    def choices(size: int) -> Body:
        return {**_ASKED, "guided_choice": [f"v{number}" for number in range(size // 10)]}

    def regex(size: int) -> Body:
        return {**_ASKED, "guided_regex": "a/" * (size // 2)}

    def any_object(size: int) -> Body:
        return {**_ASKED, "response_format": {"type": "json_object", "x": "a" * size}}

    def rules(size: int) -> Body:
        return {**_ASKED, "guided_grammar": 'start: "a"\n' * (size // 11)}

    def beside_calls(size: int) -> Body:
        made = {"enum": [f"v{number}" for number in range(size // 10)]}
        return {**_with_tool({}), "guided_json": made}

    return _growing(
        {
            "schema": schema,
            "choices": choices,
            "regex": regex,
            "rules": rules,
            "any object": any_object,
            "beside calls": beside_calls,
        }
    )


def _tags() -> Mapping[str, Input]:
    def tagged(triggers: list[str], begins: list[str]) -> Body:
        tags = [{"begin": begin, "content": {"type": "any_text"}, "end": "e"} for begin in begins]
        form = {"type": "triggered_tags", "triggers": triggers, "tags": tags}
        return {**_ASKED, "structural_tag": {"type": "structural_tag", "format": form}}

    def many(size: int) -> Body:
        names = [f"t{number:07}" for number in range(size // 90)]
        return tagged(names, names)

    def one_trigger(size: int) -> Body:
        return tagged(["t"], [f"t{number}" for number in range(size // 80)])

    def nested(size: int) -> Body:
        names = ["t" * (number + 1) for number in range(min(int((2 * size) ** 0.5), size // 90))]
        return tagged(names, ["t" * (size // 2)])

    def elements(size: int) -> Body:
        form = {"type": "const_string", "value": "a"}
        made = {"type": "sequence", "elements": [form] * (size // 45)}
        return {**_ASKED, "structural_tag": {"type": "structural_tag", "format": made}}

    def ends(size: int) -> Body:
        tag = {
            "type": "tag",
            "begin": "b",
            "content": {"type": "any_text"},
            "end": [f"e{number}" for number in range(size // 10)],
        }
        return {**_ASKED, "structural_tag": {"type": "structural_tag", "format": tag}}

    def separated(size: int) -> Body:
        tags = [
            {"begin": f"b{number}", "content": {"type": "any_text"}, "end": "e"}
            for number in range(size // 80)
        ]
        form = {"type": "tags_with_separator", "tags": tags, "separator": ","}
        return {**_ASKED, "structural_tag": {"type": "structural_tag", "format": form}}

    def legacy(size: int) -> Body:
        names = [f"<t{number:07}>" for number in range(size // 90)]
        structures = [{"begin": name, "schema": {}, "end": "e"} for name in names]
        tag = {"type": "structural_tag", "structures": structures, "triggers": names}
        return {**_ASKED, "response_format": tag}

    return _growing(
        {
            "triggers": many,
            "tags of a trigger": one_trigger,
            "triggers that nest": nested,
            "elements": elements,
            "ends": ends,
            "tags between separators": separated,
            "older": legacy,
        }
    )


def _samplings() -> Mapping[str, Input]:
    def field(name: str, value: Callable[[int], Any]) -> Callable[[int], Body]:
        return lambda size: {**_ASKED, name: value(size)}

    return _growing(
        {
            "stop": field("stop", lambda size: ["a" * (size // 16)] * 16),
            "stops": field("stop", lambda size: ["a"] * (size // 5)),
            "stop_token_ids": field("stop_token_ids", lambda size: [1] * (size // 3)),
            "logit_bias": field(
                "logit_bias", lambda size: {str(number): 1 for number in range(size // 12)}
            ),
            "allowed_token_ids": field("allowed_token_ids", lambda size: [1] * (size // 3)),
            "bad_words": field("bad_words", lambda size: [" " * (size // 128)] * 128),
            "long integer": field("top_k", lambda size: int("1" * min(size, 4300))),
        }
    )


def _others() -> Mapping[str, Input]:
    def field(name: str, value: Callable[[str], Any]) -> Callable[[int], Body]:
        return lambda size: {**_ASKED, name: value("a" * size)}

    def variables(size: int) -> Body:
        names = {f"v{number}": "<|im_end|>" for number in range(size // 20)}
        return {**_ASKED, "chat_template_kwargs": names}

    predicted = repeated("it was a fine morning. ")
    return _growing(
        {
            "unknown": field("x", lambda text: text),
            "model": field("model", lambda text: text),
            "user": field("user", lambda text: text),
            "cache_salt": field("cache_salt", lambda text: text),
            "metadata": field("metadata", lambda text: {"x-session-id": text}),
            "reasoning_effort": field("reasoning_effort", lambda text: text),
            "thinking": field("thinking", lambda text: {text: 1}),
            "variables": variables,
            "prediction": lambda size: {
                **_ASKED,
                "prediction": {"type": "content", "content": predicted(size)},
            },
        }
    )


def _prompts() -> Mapping[str, Input]:
    return _growing(
        {
            "ids": lambda size: {"prompt": [7] * (size // 3)},
            "texts": lambda size: {"prompt": ["it was"] * (size // 10)},
            "lists of ids": lambda size: {"prompt": [[7]] * (size // 5)},
            "half of a grammar": lambda size: {
                "prompt": ["it was"] * min(1024, size // 10),
                "guided_regex": "a" * (size // 2),
            },
        }
    )


def _message(text: str) -> Body:
    return {
        "max_tokens": 1,
        "system": text,
        "messages": [
            {"role": "user", "content": text},
            {
                "role": "assistant",
                "content": [{"type": "thinking", "thinking": text, "signature": text}],
            },
            {"role": "user", "content": "?"},
        ],
    }


def _messages() -> Mapping[str, Input]:
    def of(*messages: Any, **more: Any) -> Body:
        return {"max_tokens": 1, "messages": messages, **more}

    user = {"role": "user", "content": "?"}

    def systems(size: int) -> Body:
        """Return a long question, followed by as many reminders as allowed."""
        count = min(4095, size // 80)
        reminder = {"role": "system", "content": "so"}
        return of({"role": "user", "content": "a" * (size // 2)}, *[reminder] * count)

    def first_systems(size: int) -> Body:
        count = min(4094, size // 80)
        reminder = {"role": "system", "content": "so"}
        return of(*[reminder] * count, user, system="a" * (size // 2))

    def blocks(kind: str, **fields: Any) -> Callable[[int], Body]:
        role = "assistant" if kind in ("thinking", "tool_use") else "user"

        def body(size: int) -> Body:
            block = {"type": kind, **fields}
            content = [block] * (size // len(json.dumps(block)))
            return of({"role": role, "content": content}, user)

        return body

    return _growing(
        {
            "systems": systems,
            "first systems": first_systems,
            "texts": blocks("text", text="a"),
            "marked texts": blocks("text", text="a", cache_control={"type": "ephemeral"}),
            "results": blocks("tool_result", tool_use_id="a", content="!"),
            "thoughts": blocks("thinking", thinking="so", signature=""),
            "calls": blocks("tool_use", name="f", input={}),
            "billing lines": lambda size: of(
                user,
                system=[{"type": "text", "text": "x-anthropic-billing-header:" + "a" * size}],
            ),
            "carried thoughts": lambda size: of(
                {
                    "role": "assistant",
                    "content": [
                        {
                            "type": "thinking",
                            "thinking": "",
                            "signature": "tasuki.text." + "YWFh" * (size // 4),
                        }
                    ],
                },
                user,
            ),
        }
    )


def _message_tools() -> Mapping[str, Input]:
    def tools(size: int) -> Body:
        tool = {"name": "f", "input_schema": {}}
        return {**_message("?"), "tools": [tool] * (size // 40)}

    def schema(size: int) -> Body:
        made = {"enum": [f"v{number}" for number in range(size // 10)]}
        form = {"type": "json_schema", "schema": made}
        return {**_message("?"), "output_format": form}

    def stops(size: int) -> Body:
        return {**_message("?"), "stop_sequences": ["a" * (size // 16)] * 16}

    def effort(size: int) -> Body:
        config = {"effort": "low", "x": "a" * size}
        return {**_message("?"), "thinking": {"type": "adaptive"}, "output_config": config}

    return _growing({"tools": tools, "schema": schema, "stops": stops, "effort": effort})


def _function_call(text: str) -> Body:
    call = {"type": "function_call", "name": "f", "call_id": "a", "arguments": text}
    output = {"type": "function_call_output", "call_id": "a", "output": "!"}
    return {"input": [{"role": "user", "content": "?"}, call, output]}


def _items() -> Mapping[str, Input]:
    user = {"role": "user", "content": "?"}

    def items(**item: Any) -> Callable[[int], Body]:
        def body(size: int) -> Body:
            count = min(4094, size // len(json.dumps(item)))
            return {"input": [user, *[item] * count, user]}

        return body

    def reminders(size: int) -> Body:
        count = min(4094, size // 80)
        reminder = {"role": "developer", "content": "so"}
        return {"input": [{"role": "user", "content": "a" * (size // 2)}, *[reminder] * count]}

    return _growing(
        {
            "texts": lambda size: {"input": "a" * size},
            "behind a stored one": lambda size: {
                "input": "a" * size,
                "previous_response_id": _STORED,
            },
            "instructions": lambda size: {"input": "?", "instructions": "a" * size},
            "reminders": reminders,
            "users": items(role="user", content="?"),
            "reasoning": items(type="reasoning", summary=[{"type": "summary_text", "text": "so"}]),
            "custom calls": items(type="custom_tool_call", name="f", input="so"),
            "compactions": items(**compaction_item("cmp_1", "so")),
            "a long compaction": lambda size: {
                "input": [compaction_item("cmp_1", "a" * size), user]
            },
            "references": items(type="item_reference", id="msg_" + "a" * 32 + "_0"),
            "parts": lambda size: {
                "input": [
                    {
                        "role": "user",
                        "content": [{"type": "input_text", "text": "a"}] * (size // 40),
                    }
                ]
            },
            "a long reference": lambda size: {
                "input": [{"type": "item_reference", "id": "a" * size}]
            },
        }
    )


def _messages_on_sockets() -> Mapping[str, Input]:
    create = {"type": "response.create"}
    return _growing(
        {
            "create": lambda size: {**create, "input": "a" * size},
            "a prompt beforehand": lambda size: {**create, "generate": False, "input": "a" * size},
            "nothing yet": lambda size: {**create, "generate": False, "instructions": "a" * size},
            "behind a stored one": lambda size: {
                **create,
                "input": "a" * size,
                "previous_response_id": _STORED,
            },
            "another type": lambda size: {"type": "a" * size},
        }
    )


def _response_tools() -> Mapping[str, Input]:
    def namespace(size: int) -> Body:
        """Put half of the size into the name and half into the tools of that namespace."""
        inner = {"type": "function", "name": "f"}
        space = {"type": "namespace", "name": "a" * (size // 2), "tools": [inner] * (size // 80)}
        return {"input": "?", "tools": [space]}

    def custom(size: int) -> Body:
        form = {"type": "grammar", "syntax": "regex", "definition": "a" * size}
        return {"input": "?", "tools": [{"type": "custom", "name": "f", "format": form}]}

    def many(size: int) -> Body:
        return {"input": "?", "tools": [{"type": "function", "name": "f"}] * (size // 40)}

    def forced(size: int) -> Body:
        chosen = {"type": "custom", "name": "f"}
        return {**custom(size), "tool_choice": chosen}

    return _growing(
        {
            "a namespace's tools": namespace,
            "custom tools": custom,
            "forced custom tools": forced,
            "tools": many,
        }
    )
