"""Entries for input by other ways: gRPC, the gateway's protocol and links. They also cover readers
with a worst case outside the bodies of bodies.py."""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.apart.frames import FrameReader, frame_of
from tasuki.model.grammar.compiled_grammar import with_options
from tasuki.model.grammar.grammar import GrammarError
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import ServerError
from tasuki.server.grpc import generate_messages
from tasuki.server.grpc.cache_messages import tree_question
from tasuki.server.grpc.generate_messages import read_choices, read_prompt, read_sampling
from tasuki.server.grpc.session_service import read_session_input
from tasuki.server.http.reply import named_event
from tasuki.server.openapi.responses_fields import IMAGE_URLS
from tasuki.server.pictures.encoded_bytes import Base64
from tasuki.server.pictures.kept_pictures import TurnPictures
from tasuki.server.pictures.sent_picture import SentPicture
from tasuki.server.responses.conversations import output_items
from tasuki.server.responses.endpoints.background import EventLog, is_of_background
from tasuki.server.responses.listed_items import AskedPage, listed_items, page_of
from tasuki.server.responses.listed_pictures import shows_urls
from tasuki.server.responses.stored_responses import StoredResponse, StoredTurn
from tasuki.server.sessions import Tail
from tasuki.server.text.chat_message import ChatMessage, ToolCall
from tasuki.server.text.chat_renderer import read_bad_words
from tasuki.server.text.grammars.call_grammar import CallGrammar, OfferedTool
from tasuki.server.text.json_reading import holds_too_many_values, nested_too_deeply, read_arguments
from tasuki.server.text.text_codec import TextCodec
from tests.harness.picture_files import picture_file

from .bodies import JSON_SHAPES, Served
from .entries import Entry, Input, Whole, some
from .shapes import TEXTS, repeated

_HARD = some("one word", "white space", "emoji", "half names", "digits")


def readers(served: Served) -> list[Entry]:
    codec = served.in_tags.codec
    return [
        Whole(
            "arguments of a call",
            ("server/text/json_reading.py:read_arguments",),
            JSON_SHAPES,
            read_arguments,
        ),
        Whole(
            "values of a body",
            ("server/text/json_reading.py:holds_too_many_values",),
            {**_of_bytes(JSON_SHAPES), "strings behind commas": _strings_behind_commas},
            holds_too_many_values,
        ),
        Whole(
            "depth of a body",
            ("server/text/json_reading.py:nested_too_deeply",),
            {"wide": lambda size: [[[]]] * (size // 8), "ids": lambda size: [[7] * size]},
            nested_too_deeply,
        ),
        _listed(),
        *_in_background(),
        _calls_grammar(),
        _options(),
        *_grpc(codec),
        *_gateway(codec),
        *_links(),
    ]


def _of_bytes(texts: Mapping[str, Callable[[int], str]]) -> dict[str, Input]:
    def of(make: Callable[[int], str]) -> Input:
        return lambda size: make(size).encode(errors="surrogatepass")

    return {name: of(make) for name, make in texts.items()}


def _strings_behind_commas(size: int) -> bytes:
    """Return a string with more commas than a body may have values, followed by many short
    strings."""
    commas = b'["' + b"," * (1 << 20) + b'"'
    return commas + b' "\\""' * max(0, (size - len(commas)) // 5)


def _refusable(read: Callable[[Any], object]) -> Callable[[Any], object]:
    def refusing(made: Any) -> object:
        try:
            return read(made)
        except (ServerError, GrammarError):
            return None

    return refusing


def _calls_grammar() -> Entry:
    """Return the entry of call grammars, without the template's rendering of the tools. The
    rendering costs several times as much."""

    def grown(parameters: Callable[[int], Any]) -> Input:
        def make(size: int) -> CallGrammar:
            function = {"name": "f", "parameters": parameters(size)}
            tool = OfferedTool({"type": "function", "function": function}, strict=True)
            return CallGrammar("tools", [tool], in_tags=True, many=True)

        return make

    def required(size: int) -> Any:
        return {"required": [f"k{number}" for number in range(size // 12)]}

    def definitions(size: int) -> Any:
        names = [f"k{number}" for number in range(size // 60)]
        return {
            "$defs": {"d": {"description": "a" * (size // 2)}},
            "properties": {name: {"type": "integer"} for name in names},
        }

    def references(size: int) -> Any:
        keywords = {f"d{number}": number for number in range(size // 24)}
        names = [f"k{number}" for number in range(size // 80)]
        return {
            "$defs": {"d": {"type": "string", **keywords}},
            "properties": {name: {"$ref": "#/$defs/d"} for name in names},
        }

    def doubling(size: int) -> Any:
        count = max(1, size // 80)
        chain = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(count)}
        last = {f"d{count}": {"type": "string"}}
        return {"$defs": {**chain, **last}, "properties": {"a": {"$ref": "#/$defs/d0"}}}

    def itself(size: int) -> Any:
        branches = [{"$ref": "#/$defs/d"} for _ in range(size // 26)]
        return {
            "$defs": {"d": {"anyOf": branches}},
            "properties": {"a": {"$ref": "#/$defs/d"}},
        }

    def names(size: int) -> list[str]:
        return [f"k{number}" for number in range(max(1, size // 24))]

    def either(size: int) -> Any:
        return {"anyOf": [{"required": [name]} for name in names(2 * size)]}

    def told_apart(size: int) -> Any:
        kinds = [{"properties": {"a": {"const": k}}, "required": ["a"]} for k in names(size)]
        return {"oneOf": kinds}

    def all_of(size: int) -> Any:
        return {"allOf": [{"properties": {name: {}}} for name in names(size)]}

    def listed(size: int) -> Any:
        values = {"enum": [*names(size), 1, None], "type": ["string", "integer"]}
        return {"properties": {"a": values}, "minProperties": 1}

    def whole(size: int) -> Any:
        texts = {"oneOf": [{"const": name} for name in names(size)], "minLength": 1}
        return {"properties": {"a": {"$ref": "#/properties/b"}, "b": texts}}

    def counted(size: int) -> Any:
        return {"properties": {name: {} for name in names(size)}, "minProperties": 1}

    def others(size: int) -> Any:
        open_object = {"type": "object", "additionalProperties": {"type": "string"}}
        return {**open_object, "properties": {name: {"type": "null"} for name in names(size)}}

    def value(size: int) -> Any:
        return {"const": {name: [name] for name in names(size)}}

    def pattern(size: int) -> Any:
        return {"properties": {"a": {"type": "string", "pattern": "(a|[^b])" * (size // 8)}}}

    made = {
        "alternatives": either,
        "alternatives with constants": told_apart,
        "schemas of all": all_of,
        "listed strings": listed,
        "references to the whole": whole,
        "counted properties": counted,
        "other properties": others,
        "a constant": value,
        "a pattern": pattern,
        "required": required,
        "definitions": definitions,
        "references": references,
        "references that double": doubling,
        "references to itself": itself,
    }
    shapes = {name: grown(parameters) for name, parameters in made.items()}
    functions = tuple(
        f"server/text/grammars/call_grammar.py:CallGrammar.{name}"
        for name in ("_called", "_asked", "_opening")
    )
    return Whole("grammar of calls", functions, shapes, _refusable(CallGrammar.forced), 4 << 20)


def _listed() -> Entry:
    """Return the entry of listed input items of a stored response."""
    call = ToolCall("f", {"a": 1})
    turn = (
        ChatMessage("user", "so"),
        ChatMessage("assistant", "it was", (call, call), "so"),
        ChatMessage("tool", "!"),
    )

    def stored(messages: Sequence[ChatMessage], sent: Sequence[bytes] = ()) -> StoredResponse:
        tokens = np.array([7], dtype=np.int32)
        pictures = TurnPictures(tuple(SentPicture("a", Base64(one, "a", 1 << 30)) for one in sent))
        turn = replace(StoredTurn.of(tokens, messages, b""), pictures=pictures)
        return StoredResponse("resp_" + "a" * 32, b"{}", turn)

    def listed(response: StoredResponse) -> bytes:
        page, urls = AskedPage.of({"limit": "100"}), shows_urls({"include": IMAGE_URLS})
        body = listed_items(response, page, urls=urls)
        return page_of(response.id, [("item", body)], page)

    shown = ChatMessage("user", "so", pictures=(0, 1))
    said = ChatMessage("assistant", "it was")
    small = base64.b64encode(picture_file())

    def lines(size: int) -> bytes:
        return base64.encodebytes(picture_file() + b"a" * (size * 3 // 4))

    shapes: dict[str, Input] = {
        "turns": lambda size: stored(turn * (size // 80 + 1)),
        "one": lambda size: stored([ChatMessage("user", "a" * size)] * 2),
        "pictures": lambda size: stored(
            [shown, said] * (size // len(small) + 1), [small] * (2 * (size // len(small) + 1))
        ),
        "a picture in lines": lambda size: stored([shown, said], [lines(size), small]),
    }
    functions = (
        "server/responses/listed_items.py:listed_items",
        "server/responses/listed_items.py:page_of",
        "server/responses/listed_pictures.py:shows_urls",
        "server/responses/listed_pictures.py:input_parts",
        "server/responses/listed_pictures.py:picture_url",
    )
    return Whole("input items", functions, shapes, listed)


def _in_background() -> list[Entry]:
    def stored(size: int) -> bytes:
        return json.dumps({"output": ["a" * (size // 2)] * 2, "background": True}).encode()

    def outputs(size: int) -> bytes:
        return json.dumps({"output": [{"id": "a", "text": "a" * 20}] * (size // 40)}).encode()

    events = repeated("event: a\ndata: {}\n\n")
    return [
        Whole(
            "events kept",
            ("server/responses/endpoints/background.py:EventLog.add",),
            {
                "many": lambda size: events(size).encode(),
                "one": lambda size: named_event({"type": "a", "text": "a" * size}),
            },
            lambda made: EventLog().add(made),
        ),
        Whole(
            "a response's items for its conversation",
            ("server/responses/conversations.py:output_items",),
            {"many": outputs},
            lambda body: [*output_items(body)],
        ),
        Whole(
            "a stored response's kind",
            ("server/responses/endpoints/background.py:is_of_background",),
            {"text": stored},
            is_of_background,
        ),
    ]


def _options() -> Entry:
    def pattern(text: Callable[[int], str]) -> Input:
        return lambda size: {"pattern": text(size), "patternProperties": {text(size): {}}}

    hard = some("escapes", "zeros in an escape", "groups", "dollars", "white space", "one word")

    def repeated(pattern: str) -> Input:
        return lambda size: {"pattern": pattern * max(1, size // len(pattern))}

    def named(size: int) -> dict[str, Any]:
        keys = [f"k{number}" for number in range(size // 8)]
        names = {"$ref": "#/$defs/names"}
        definitions = {"names": {"type": "string", "enum": keys}}
        return {"$defs": definitions, "propertyNames": names, "additionalProperties": {}}

    def saying_nothing(size: int) -> dict[str, Any]:
        inner = {"uniqueItems": False, "then": {}, "dependentRequired": {}, "title": "a"}
        return {"allOf": [inner] * (size // 64)}

    shapes = {name: pattern(text) for name, text in hard.items()}
    shapes |= {
        "brackets": repeated(r"[a-z\d&&\x41\u{42}-]"),
        "open brackets": repeated("["),
        "classes": repeated(r"\w\W\s."),
        "quantifiers": repeated("a{1,2}?(?:b)"),
        "open quantifiers": repeated("{"),
        "names": named,
        "keywords that say nothing": saying_nothing,
    }
    functions = ("model/grammar/compiled_grammar.py:with_options",)
    return Whole("options of a schema", functions, shapes, _refusable(with_options))


def _grpc(codec: TextCodec) -> list[Entry]:
    def prompt(request: pb.GenerateRequest) -> object:
        read_choices(request)
        return read_prompt(request, b"", codec)

    def appended(request: pb.SessionAppendRequest) -> object:
        return read_session_input(request, Tail.ANSWER, b"", codec)

    def sampled(sampling: pb.Sampling) -> object:
        return read_sampling(sampling, codec)

    def sampling(**fields: Callable[[int], Any]) -> Input:
        ((name, value),) = fields.items()
        return lambda size: pb.Sampling(**{name: value(size)})

    def text(make: Callable[[int], str]) -> Input:
        return lambda size: pb.GenerateRequest(text=make(size))

    def messages(size: int) -> pb.Messages:
        item = pb.Message(role="user", content="a" * 40)
        return pb.Messages(items=[item] * min(4096, size // 50))

    texts = some("one word", "white space", "emoji", "half names", "digits")
    return [
        Whole(
            "gRPC prompt",
            (
                "server/grpc/generate_messages.py:read_prompt",
                "server/grpc/generate_messages.py:read_choices",
            ),
            {
                **{name: text(make) for name, make in texts.items()},
                "messages": lambda size: pb.GenerateRequest(messages=messages(size)),
                "ids": lambda size: pb.GenerateRequest(
                    token_ids=pb.TokenIds(ids=np.ones(size // 2, dtype=np.int32))
                ),
                "marks": lambda size: pb.GenerateRequest(
                    token_ids=pb.TokenIds(ids=[7] * (size // 4)), marks=range(1, size // 4)
                ),
            },
            _refusable(prompt),
        ),
        Whole(
            "gRPC session",
            ("server/grpc/session_service.py:read_session_input",),
            {
                "messages": lambda size: pb.SessionAppendRequest(messages=messages(size)),
                "answer": lambda size: pb.SessionAppendRequest(
                    answer=pb.TokenIds(ids=[7] * (size // 2))
                ),
                "text": lambda size: pb.SessionAppendRequest(text="a" * size),
            },
            _refusable(appended),
        ),
        Whole(
            "gRPC sampling",
            ("server/grpc/generate_messages.py:read_sampling",),
            {
                "biases": sampling(
                    logit_bias=lambda size: {number: 1.0 for number in range(size // 8)}
                ),
                "allowed": sampling(allowed_token_ids=lambda size: [7] * size),
                "bad words": sampling(bad_words=lambda size: ["a"] * (size // 3)),
                "long bad words": sampling(bad_words=lambda size: [" " * (size // 128)] * 128),
                "stops": sampling(stop_token_ids=lambda size: [7] * size),
            },
            _refusable(sampled),
        ),
        Whole(
            "gRPC grammars",
            ("server/grpc/generate_messages.py:_asked_grammar",),
            {
                "schema": lambda size: pb.Sampling(json_schema='{"a":' * (size // 5)),
                "regex": lambda size: pb.Sampling(regex="a" * size),
                "choices": lambda size: pb.Sampling(choices=pb.Choices(texts=["a"] * (size // 3))),
            },
            _refusable(generate_messages._asked_grammar),
        ),
        Whole(
            "gRPC tree",
            ("server/grpc/cache_messages.py:tree_question",),
            {
                "prefix": lambda size: pb.TreeRequest(prefix=pb.TokenIds(ids=[7] * (size // 2))),
                "under": lambda size: pb.TreeRequest(under=f"{'1' * size}.1"),
            },
            _refusable(tree_question),
        ),
        Whole(
            "bad words",
            ("server/text/chat_renderer.py:read_bad_words",),
            {name: _as_words(make) for name, make in TEXTS.items() if name in _HARD},
            _refusable(lambda words: read_bad_words("bad_words", words, codec)),
        ),
    ]


def _as_words(make: Callable[[int], str]) -> Input:
    return lambda size: [make(min(256, size))] * min(128, max(1, size // 256))


def _gateway(codec: TextCodec) -> list[Entry]:
    try:
        from smg_grpc_proto.generated import tokenspeed_scheduler_pb2 as smg

        from tasuki.server.smg.generate_messages import read_gateway_request
    except ImportError:
        # The extra of the gateway is not installed.
        return []
    from pathlib import Path

    from tasuki.server.smg.gateway_model import GatewayModel

    model = GatewayModel(Path(), "m", "m", (), "float32", 320, 1 << 18, (1,))

    def request(size: int, **sampling: Any) -> Any:
        return smg.GenerateRequest(
            request_id="a",
            tokenized=smg.TokenizedInput(input_ids=[7] * size),
            sampling_params=smg.SamplingParams(**sampling),
        )

    return [
        Whole(
            "gateway's request",
            ("server/smg/generate_messages.py:read_gateway_request",),
            {
                "ids": lambda size: request(size // 2),
                "biases": lambda size: request(
                    1, logit_bias={str(number): 1.0 for number in range(size // 12)}
                ),
                "stops": lambda size: request(1, stop=["a"] * (size // 3)),
                "structural tag": lambda size: request(1, structural_tag="[" * size),
            },
            _refusable(lambda made: read_gateway_request(made, model, None, codec)),
        )
    ]


def _links() -> list[Entry]:
    def token(number: int) -> m.TokenOut:
        return m.TokenOut(m.RequestId("a"), number % 300, -0.5, 1.5, number)

    def frames(size: int) -> list[bytes]:
        """Return one long frame, cut into a socket's pieces of 4096 bytes."""
        frame = bytes(frame_of([token(number) for number in range(size // 16)]))
        return [frame[at : at + 4096] for at in range(0, len(frame), 4096)]

    def short_frames(size: int) -> list[bytes]:
        return [bytes(frame_of([token(7)])) * (size // 40 + 1)]

    def read(pieces: list[bytes]) -> int:
        reader = FrameReader()
        return sum(len(some) for piece in pieces for some in reader.take(piece))

    def tokens(size: int) -> list[m.TokenOut]:
        return [token(number) for number in range(size // 16)]

    def aborts(size: int) -> list[m.Abort]:
        return [m.Abort(m.RequestId("a" * 16)) for _ in range(size // 16)]

    shapes = {"one frame": frames, "short frames": short_frames}
    taken = ("engine/apart/frames.py:FrameReader.take",)
    made = ("engine/apart/frames.py:frame_of", "engine/apart/frames.py:framed")
    return [
        Whole("frames of a link", taken, shapes, read, 8 << 20),
        Whole("frames for a link", made, {"tokens": tokens, "aborts": aborts}, frame_of, 8 << 20),
    ]
