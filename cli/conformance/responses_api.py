"""OpenAI's Responses API, as conformance checks use it."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from . import openai_api
from .api import Answer, BadRequest, Call, Choice, End, Question, Usage, bad_requests, of_name
from .endpoint import Event, Reply
from .outcome import NUMBER, Departure, must, must_equal, must_have

_ITEMS = {
    "message": {"id": str, "role": {"assistant"}, "content": [{"type": str}]},
    "reasoning": {"id": str},
    "function_call": {"id?": str, "call_id": str, "name": str, "arguments": str},
}
_USAGE = {"input_tokens": int, "output_tokens": int, "total_tokens": int}
_WHOLE = {
    "id": str,
    "object": {"response"},
    "created_at": NUMBER,
    "model": str,
    "status": {"completed", "incomplete"},
    "output": [{"type": str}],
    "usage": _USAGE,
}
_LAST = ("response.completed", "response.incomplete")
_DELTAS = {
    "response.output_text": "text",
    "response.reasoning_text": "text",
    "response.reasoning": "text",
    "response.function_call_arguments": "arguments",
}
_CALL_ID = "call_conformance"


class Responses:
    name = "responses"
    path = "/v1/responses"

    def body(self, model: str, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "input": _input(question),
            "max_output_tokens": question.bound,
            "temperature": 0,
            "stream": False,
        }
        if question.tools:
            body["tools"] = [
                {"type": "function", "name": tool.name, "parameters": tool.schema, "strict": False}
                for tool in question.tools
            ]
        if question.choice is Choice.NAMED:
            body["tool_choice"] = {"type": "function", "name": question.tools[0].name}
        elif question.choice is not Choice.AUTO:
            body["tool_choice"] = question.choice.value
        if question.schema is not None:
            form = {"type": "json_schema", "name": "answer", "schema": question.schema}
            body["text"] = {"format": {**form, "strict": True}}
        return {**body, **dict(question.fields)}

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        return {**self.body(model, question), "stream": True}

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        must_have(_WHOLE, reply, "reply")
        return _answer(reply)

    def followed(self, events: Sequence[Event]) -> Answer:
        """Return the answer assembled from its deltas, or from the finished item if it has none.
        The end reason and the usage come from the last event's response."""
        texts: dict[Any, str] = {}
        items: dict[Any, dict[str, Any]] = {}
        last: dict[str, Any] = {}
        for body in _bodies(events):
            kind = str(body.get("type"))
            if kind in ("response.output_item.added", "response.output_item.done"):
                items[body["item"].get("id")] = body["item"]
            elif kind.endswith(".delta") and kind.removesuffix(".delta") in _DELTAS:
                name = body["item_id"]
                texts[name] = texts.get(name, "") + body["delta"]
            elif kind in _LAST:
                last = dict(body["response"])
        output = [
            _with_text(item, texts[name]) if name in texts else item for name, item in items.items()
        ]
        return _answer({**last, "output": output})

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        bodies = _bodies(events)
        for event, body in zip(events_of(events), bodies, strict=True):
            must_equal("name of an event", body.get("type"), event.name)
        numbers = [body.get("sequence_number") for body in bodies]
        must_equal("sequence numbers", list(range(len(bodies))), numbers)
        kinds = [body["type"] for body in bodies]
        must_equal("the first events", ["response.created", "response.in_progress"], kinds[:2])
        must(kinds[-1] in _LAST, "the last event", " or ".join(_LAST), kinds[-1])
        whole = bodies[-1]["response"]
        for body in bodies[:2]:
            must_equal("id of the response", whole["id"], body["response"].get("id"))
            must_equal("status at the start", "in_progress", body["response"].get("status"))
        items = _ordered_items(bodies[2:-1])
        must_equal("output of the last event", items, whole["output"])

    def must_be_error(self, reply: Reply) -> None:
        openai_api.must_be_openai_error(reply)

    def bad_requests(self, model: str) -> Sequence[BadRequest]:
        good = self.body(model, Question("Hello.", bound=16))
        return bad_requests(
            good,
            b'{"input": "',
            {
                "input that is a number": {"input": 3},
                "a bound that is a word": {"max_output_tokens": "many"},
            },
        )


def events_of(events: Sequence[Event]) -> list[Event]:
    """Return all events of a stream. Some servers send [DONE] at its end: leave it out."""
    return [event for event in events if event.data != openai_api.DONE]


def _bodies(events: Sequence[Event]) -> list[dict[str, Any]]:
    found = []
    for event in events_of(events):
        body = event.json
        must(isinstance(body, dict), "an event", "an object", body)
        if body.get("type") in ("error", "response.failed"):
            raise Departure("an event", "a part of the response", body)
        found.append(body)
    must(bool(found), "events of the stream", "one at least", [])
    return found


def _ordered_items(bodies: Sequence[Mapping[str, Any]]) -> list[Any]:
    """Return the completed output items of a stream. Raises Departure if an item is incomplete, out
    of order, or changes its id."""
    items: list[Any] = []
    open_item: Any = None
    text = ""
    for body in bodies:
        kind = body["type"]
        must_equal(f"output_index of {kind}", len(items), body.get("output_index"))
        if kind == "response.output_item.added":
            must(open_item is None, kind, "the item before it done", open_item)
            open_item, text = body["item"], ""
            continue
        if open_item is None:
            raise Departure(kind, "an item that was added", "none")
        if kind == "response.output_item.done":
            must_equal(f"item's id of {kind}", open_item.get("id"), body["item"].get("id"))
            items.append(body["item"])
            open_item = None
            continue
        must_equal(f"item_id of {kind}", open_item.get("id"), body.get("item_id"))
        if kind.endswith(".delta"):
            text += body["delta"]
        elif kind.removesuffix(".done") in _DELTAS:
            must_equal(f"text of {kind}", text, body.get(_DELTAS[kind.removesuffix(".done")]))
    must(open_item is None, "the last item", "done", open_item)
    return items


def _with_text(item: Mapping[str, Any], text: str) -> dict[str, Any]:
    match item.get("type"):
        case "function_call":
            return {**item, "arguments": text}
        case "reasoning":
            return {**item, "content": [{"type": "reasoning_text", "text": text}]}
    return {**item, "content": [{"type": "output_text", "text": text}]}


def _answer(response: Mapping[str, Any]) -> Answer:
    output = response["output"]
    for number, item in enumerate(output):
        shape = of_name(_ITEMS, f"type of item {number}", item.get("type"))
        must_have(shape, item, f"item {number}")
    calls = tuple(
        Call(item["name"], item["arguments"], str(item.get("status") or ""))
        for item in output
        if item["type"] == "function_call"
    )
    status = response.get("status")
    if status == "incomplete":
        details = response.get("incomplete_details")
        must_have({"reason": {"max_output_tokens"}}, details, "incomplete_details")
    ends = {"completed": End.CALLS if calls else End.DONE, "incomplete": End.LENGTH}
    usage = response.get("usage")
    must_have(_USAGE, usage, "usage")
    assert isinstance(usage, dict)
    prompt, answer = usage["input_tokens"], usage["output_tokens"]
    must_equal("usage.total_tokens", prompt + answer, usage["total_tokens"])
    return Answer(
        id=str(response.get("id")),
        text=_texts(output, "message", "output_text"),
        thought=_texts(output, "reasoning", "reasoning_text"),
        calls=calls,
        end=of_name(ends, "status", status),
        reason=str(status),
        usage=Usage(prompt, answer),
    )


def _texts(output: Sequence[Mapping[str, Any]], kind: str, part_kind: str) -> str:
    parts = [part for item in output if item["type"] == kind for part in item.get("content") or []]
    return "".join(part.get("text") or "" for part in parts if part.get("type") == part_kind)


def _input(question: Question) -> str | list[dict[str, Any]]:
    if not question.history:
        return question.text
    items: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    for number, past in enumerate(question.history):
        name, arguments = f"{_CALL_ID}_{number}", json.dumps(past.arguments)
        call = {"type": "function_call", "call_id": name, "name": past.tool}
        output = {"type": "function_call_output", "call_id": name, "output": past.result}
        items += [{**call, "arguments": arguments}, output]
    return items
