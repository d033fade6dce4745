"""Anthropic's Messages API, as conformance checks use it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .api import Answer, BadRequest, Call, Choice, End, Question, Usage, bad_requests, of_name
from .endpoint import Event, Reply
from .outcome import Departure, must, must_equal, must_have

_ENDS = {
    "end_turn": End.DONE,
    "tool_use": End.CALLS,
    "max_tokens": End.LENGTH,
    "stop_sequence": End.STOP,
}
_CHOICES = {Choice.REQUIRED: "any", Choice.NAMED: "tool"}
_USAGE = {"input_tokens": int, "output_tokens": int}
_CACHED = ("cache_creation_input_tokens", "cache_read_input_tokens")
_BLOCKS = {
    "text": {"text": str},
    "thinking": {"thinking": str},
    "tool_use": {"id": str, "name": str, "input": dict},
}
_WHOLE = {
    "id": str,
    "type": {"message"},
    "role": {"assistant"},
    "model": str,
    "content": [{"type": str}],
    "stop_reason": set(_ENDS),
    "stop_sequence?": str,
    "usage": _USAGE,
}
_DELTAS = {
    "text_delta": ("text", "text"),
    "thinking_delta": ("thinking", "thinking"),
    "input_json_delta": ("tool_use", "partial_json"),
    "signature_delta": ("thinking", "signature"),
}
_ERROR = {"type": {"error"}, "error": {"type": str, "message": str}}
_CALL_ID = "toolu_conformance"


class Messages:
    name = "messages"
    path = "/v1/messages"

    def body(self, model: str, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "messages": _messages(question),
            "max_tokens": question.bound,
            "temperature": 0,
            "stream": False,
        }
        if question.tools:
            body["tools"] = [
                {"name": tool.name, "input_schema": tool.schema} for tool in question.tools
            ]
        if question.choice is not Choice.AUTO:
            chosen = {"type": _CHOICES[question.choice]}
            if question.choice is Choice.NAMED:
                chosen["name"] = question.tools[0].name
            body["tool_choice"] = chosen
        if question.stop:
            body["stop_sequences"] = list(question.stop)
        if question.schema is not None:
            body["output_config"] = {"format": {"type": "json_schema", "schema": question.schema}}
        return {**body, **dict(question.fields)}

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        return {**self.body(model, question), "stream": True}

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        must_have(_WHOLE, reply, "reply")
        return _answer(reply)

    def followed(self, events: Sequence[Event]) -> Answer:
        message: dict[str, Any] = {}
        blocks: dict[int, dict[str, Any]] = {}
        inputs: dict[int, str] = {}
        for body in _bodies(events):
            index = body.get("index", 0)
            match body.get("type"):
                case "message_start":
                    message = dict(body["message"])
                case "content_block_start":
                    blocks[index] = dict(body["content_block"])
                case "content_block_delta" if index in blocks:
                    delta = body["delta"]
                    _, key = of_name(_DELTAS, "type of a delta", delta.get("type"))
                    if key == "partial_json":
                        inputs[index] = inputs.get(index, "") + delta[key]
                    else:
                        blocks[index][key] = (blocks[index].get(key) or "") + delta[key]
                case "message_delta":
                    usage = {**(message.get("usage") or {}), **(body.get("usage") or {})}
                    message = {**message, **body["delta"], "usage": usage}
        for index, text in inputs.items():
            blocks[index]["input"] = _input(text)
        content = [blocks[index] for index in sorted(blocks)]
        return _answer({**message, "content": content})

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        bodies = [body for body in _bodies(events) if body.get("type") != "ping"]
        for event, body in zip(
            [event for event in events if event.name != "ping"], bodies, strict=True
        ):
            must_equal("name of an event", body.get("type"), event.name)
        kinds = [body["type"] for body in bodies]
        must_equal("the first event", "message_start", kinds[0] if kinds else None)
        must_equal("the last events", ["message_delta", "message_stop"], kinds[-2:])
        begun = bodies[0].get("message")
        must_have({"id": str, "content": [dict], "usage": _USAGE}, begun, "message_start.message")
        assert isinstance(begun, dict)
        must_equal("content of message_start", [], begun["content"])
        must_have({"delta": {"stop_reason": str}}, bodies[-2], "message_delta")
        must_have({"usage": {"output_tokens": int}}, bodies[-2], "message_delta")
        _must_be_blocks(bodies[1:-2])

    def must_be_error(self, reply: Reply) -> None:
        must_equal("content type of an error", "application/json", reply.content_type)
        must_have(_ERROR, reply.json, "body")

    def bad_requests(self, model: str) -> Sequence[BadRequest]:
        good = self.body(model, Question("Hello.", bound=1))
        return bad_requests(
            good,
            b'{"messages": [',
            {
                "no messages": {"messages": None},
                "no max_tokens": {"max_tokens": None},
                "a bound that is a word": {"max_tokens": "many"},
            },
        )


def _must_be_blocks(bodies: Sequence[Mapping[str, Any]]) -> None:
    """Raise Departure unless each content block starts, grows by deltas of its kind and stops, one
    block after another."""
    count, kind = 0, ""
    for body in bodies:
        name = body["type"]
        must_have({"index": int}, body, name)
        if name == "content_block_start":
            must_equal("an open block at content_block_start", "", kind)
            must_equal("index of content_block_start", count, body["index"])
            kind, count = str(body["content_block"].get("type")), count + 1
            of_name(_BLOCKS, "type of a block", kind)
            continue
        must(bool(kind), name, "an open block", "none")
        must_equal(f"index of {name}", count - 1, body["index"])
        if name == "content_block_stop":
            kind = ""
            continue
        must_equal("an event in a block", "content_block_delta", name)
        expected, _ = of_name(_DELTAS, "type of a delta", body["delta"].get("type"))
        must_equal("block of a delta", expected, kind)
    must_equal("an open block at message_delta", "", kind)


def _bodies(events: Sequence[Event]) -> list[dict[str, Any]]:
    found = []
    for event in events:
        body = event.json
        must(isinstance(body, dict), "an event", "an object", body)
        if body.get("type") == "error":
            raise Departure("an event", "a part of the message", body)
        found.append(body)
    return found


def _answer(message: Mapping[str, Any]) -> Answer:
    for number, block in enumerate(message["content"]):
        shape = of_name(_BLOCKS, f"type of block {number}", block.get("type"))
        must_have(shape, block, f"block {number}")
    blocks = message["content"]
    reason = message.get("stop_reason")
    usage = message.get("usage")
    must_have(_USAGE, usage, "usage")
    assert isinstance(usage, dict)
    # Cached tokens, and tokens written to the cache, are counted separately.
    prompt = usage["input_tokens"] + sum(usage.get(name) or 0 for name in _CACHED)
    return Answer(
        id=str(message.get("id")),
        text="".join(block["text"] for block in blocks if block["type"] == "text"),
        thought="".join(block["thinking"] for block in blocks if block["type"] == "thinking"),
        calls=tuple(
            Call(block["name"], json.dumps(block["input"]))
            for block in blocks
            if block["type"] == "tool_use"
        ),
        end=of_name(_ENDS, "stop_reason", reason),
        reason=str(reason),
        usage=Usage(prompt, usage["output_tokens"]),
    )


def _input(text: str) -> Any:
    try:
        return json.loads(text or "{}")
    except (ValueError, RecursionError) as error:
        raise Departure("input of a call in the stream", "JSON", text) from error


def _messages(question: Question) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    for number, past in enumerate(question.history):
        name = f"{_CALL_ID}_{number}"
        use = {"type": "tool_use", "id": name, "name": past.tool, "input": past.arguments}
        result = {"type": "tool_result", "tool_use_id": name, "content": past.result}
        messages += [
            {"role": "assistant", "content": [use]},
            {"role": "user", "content": [result]},
        ]
    return messages
