"""OpenAI's chat completions."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.cli.conformance.endpoint import Event, Reply
from tasuki.cli.conformance.outcome import Departure, must, must_equal
from tasuki.cli.conformance.question import Answer, Call, Choice, Question
from tasuki.cli.conformance.shape import NUMBER, must_have

from . import openai
from .api import of_name
from .bad_request import BadRequest, bad_requests

_CALL = {"id": str, "type": {"function"}, "function": {"name": str, "arguments": str}}
_MESSAGE = {"role": {"assistant"}, "content?": str, "tool_calls?": [_CALL]}
_WHOLE = {
    "id": str,
    "object": {"chat.completion"},
    "created": NUMBER,
    "model": str,
    "choices": [{"index": int, "message": _MESSAGE, "finish_reason": set(openai.ENDS)}],
    "usage": openai.USAGE,
}
_CALL_ID = "call_conformance"


class Chats:
    name = "chats"
    path = "/v1/chat/completions"

    def body(self, model: str, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "messages": _messages(question),
            "max_tokens": question.bound,
            "temperature": 0,
            "seed": openai.SEED,
            "stream": False,
        }
        if question.tools:
            body["tools"] = [
                {"type": "function", "function": {"name": tool.name, "parameters": tool.schema}}
                for tool in question.tools
            ]
        if question.choice is Choice.NAMED:
            name = question.tools[0].name
            body["tool_choice"] = {"type": "function", "function": {"name": name}}
        elif question.choice is not Choice.AUTO:
            body["tool_choice"] = question.choice.value
        if question.stop:
            body["stop"] = list(question.stop)
        if question.schema is not None:
            schema = {"name": "answer", "schema": question.schema, "strict": True}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return {**body, **dict(question.fields)}

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        options = {"include_usage": True}
        return {**self.body(model, question), "stream": True, "stream_options": options}

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        must_have(_WHOLE, reply, "reply")
        must_equal("choices", 1, len(reply["choices"]))
        (choice,) = reply["choices"]
        message = choice["message"]
        calls = [call["function"] for call in message.get("tool_calls") or []]
        reason = choice["finish_reason"]
        return Answer(
            id=reply["id"],
            text=message.get("content") or "",
            thought=_thought(message),
            calls=tuple(Call(call["name"], call["arguments"]) for call in calls),
            end=of_name(openai.ENDS, "finish_reason", reason),
            reason=reason,
            usage=openai.usage_of(reply["usage"]),
        )

    def followed(self, events: Sequence[Event]) -> Answer:
        chunks = openai.chunks_of(events)
        text, thought, reason = "", "", None
        calls: dict[int, list[str]] = {}
        for choice in (choice for chunk in chunks for choice in chunk.get("choices") or []):
            delta = choice.get("delta") or {}
            text += delta.get("content") or ""
            thought += _thought(delta)
            reason = choice.get("finish_reason") or reason
            for call in delta.get("tool_calls") or []:
                function = call.get("function") or {}
                name, arguments = calls.setdefault(call.get("index", 0), ["", ""])
                calls[call.get("index", 0)] = [
                    name or function.get("name") or "",
                    arguments + (function.get("arguments") or ""),
                ]
        return Answer(
            id=str(chunks[0].get("id")) if chunks else "",
            text=text,
            thought=thought,
            calls=tuple(Call(*calls[index]) for index in sorted(calls)),
            end=of_name(openai.ENDS, "finish_reason of the stream", reason),
            reason=str(reason),
            usage=openai.usage_in(chunks),
        )

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        chunks = openai.must_be_chunks(events, "chat.completion.chunk")
        deltas = [choice.get("delta") for chunk in chunks for choice in chunk["choices"]]
        for number, delta in enumerate(deltas):
            must(isinstance(delta, dict), f"delta {number}", "an object", delta)
        must_equal("role of the first delta", "assistant", deltas[0].get("role"))
        begun = 0
        for call in (call for delta in deltas for call in delta.get("tool_calls") or []):
            must_have({"index": int, "function": dict}, call, "a call's delta")
            if call["index"] == begun:
                shape = {"index": int, "id": str, "function": {"name": str}}
                must_have(shape, call, f"the first delta of call {begun}")
                begun += 1
            must_equal("index of a call's delta", begun - 1, call["index"])

    def must_be_error(self, reply: Reply) -> None:
        openai.must_be_openai_error(reply)

    def bad_requests(self, model: str) -> Sequence[BadRequest]:
        good = self.body(model, Question("Hello.", bound=1))
        return bad_requests(
            good,
            b'{"messages": [',
            {
                "no messages": {"messages": None},
                "messages that are a number": {"messages": 3},
                "a bound that is a word": {"max_tokens": "many"},
            },
        )


def _messages(question: Question) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": question.text}]
    for number, past in enumerate(question.history):
        function = {"name": past.tool, "arguments": json.dumps(past.arguments)}
        call = {"id": f"{_CALL_ID}_{number}", "type": "function", "function": function}
        messages += [
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": call["id"], "content": past.result},
        ]
    return messages


def _thought(part: Mapping[str, Any]) -> str:
    """Under either of its names."""
    found = part.get("reasoning_content") or part.get("reasoning") or ""
    if not isinstance(found, str):
        raise Departure("reasoning", "a text", found)
    return found
