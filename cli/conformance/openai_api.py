"""OpenAI's APIs for chat completions and for completions, as conformance checks use them.

Each API is one class. Both share errors, usage and chunks.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from .api import Answer, BadRequest, Call, Choice, End, Question, Usage, bad_requests, of_name
from .endpoint import Event, Reply
from .outcome import NUMBER, Departure, must, must_equal, must_have

SEED = 7
ENDS = {
    "stop": End.DONE,
    "length": End.LENGTH,
    "tool_calls": End.CALLS,
}
USAGE = {"prompt_tokens": int, "completion_tokens": int, "total_tokens": int}
DONE = "[DONE]"
_ERROR = {"error": {"message": str, "type": str, "param?": str, "code?": (str, int)}}


def usage_of(value: Any) -> Usage:
    """Return the counts of a usage object. Raises Departure for a missing field or a wrong
    total."""
    must_have(USAGE, value, "usage")
    prompt, answer = value["prompt_tokens"], value["completion_tokens"]
    must_equal("usage.total_tokens", prompt + answer, value["total_tokens"])
    return Usage(prompt, answer)


def must_be_openai_error(reply: Reply) -> None:
    must_equal("content type of an error", "application/json", reply.content_type)
    must_have(_ERROR, reply.json, "body")


def chunks_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Return all chunks of a stream except [DONE]. Raises Departure if an event is not an object,
    or is an error."""
    found = []
    for event in events:
        if event.data == DONE:
            continue
        chunk = event.json
        must(isinstance(chunk, dict), "a chunk", "an object", chunk)
        if "error" in chunk:
            raise Departure("a chunk", "a part of the answer", chunk)
        found.append(chunk)
    return found


def must_be_chunks(events: Sequence[Event], kind: str) -> list[dict[str, Any]]:
    """Return the chunks of a stream. Raises Departure unless all chunks have one id, model and
    time, usage comes last and alone, each choice ends once, and [DONE] ends the stream."""
    must(bool(events), "events of the stream", "one at least", [])
    must_equal("the last event", DONE, events[-1].data)
    must_equal("[DONE] events", 1, sum(event.data == DONE for event in events))
    chunks = chunks_of(events)
    must(bool(chunks), "chunks of the stream", "one at least", [])
    first = chunks[0]
    shape = {"id": str, "object": str, "created": NUMBER, "model": str, "choices": [dict]}
    ended: set[int] = set()
    for number, chunk in enumerate(chunks):
        must_have(shape, chunk, f"chunk {number}")
        must_equal(f"chunk {number}'s object", kind, chunk["object"])
        for name in ("id", "created", "model"):
            must_equal(f"chunk {number}'s {name}", first[name], chunk[name])
        for choice in chunk["choices"]:
            index = choice.get("index")
            must_have({"index": int}, choice, f"chunk {number}'s choice")
            must(
                index not in ended, f"chunk {number}", f"nothing after choice {index}'s end", chunk
            )
            if choice.get("finish_reason") is not None:
                ended.add(index)
    must(bool(ended), "finish_reason of the stream", "one of each choice", None)
    return chunks


def must_end_with_usage(chunks: Sequence[dict[str, Any]]) -> None:
    """Check a stream with usage requested: only its last chunk may have usage. Raises Departure
    otherwise."""
    *before, last = chunks
    must(last.get("usage") is not None, "the last chunk's usage", "an object", last.get("usage"))
    must_equal("choices of the chunk with usage", [], last["choices"])
    usage_of(last["usage"])
    for number, chunk in enumerate(before):
        must(chunk.get("usage") is None, f"chunk {number}'s usage", "null or none", chunk)


def usage_in(chunks: Sequence[dict[str, Any]]) -> Usage | None:
    """Return the usage in the last chunk with a usage, or None if no chunk has one."""
    found = [chunk["usage"] for chunk in chunks if chunk.get("usage") is not None]
    return usage_of(found[-1]) if found else None


_CALL = {"id": str, "type": {"function"}, "function": {"name": str, "arguments": str}}
_MESSAGE = {"role": {"assistant"}, "content?": str, "tool_calls?": [_CALL]}
_WHOLE_CHAT = {
    "id": str,
    "object": {"chat.completion"},
    "created": NUMBER,
    "model": str,
    "choices": [{"index": int, "message": _MESSAGE, "finish_reason": set(ENDS)}],
    "usage": USAGE,
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
            "seed": SEED,
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
        must_have(_WHOLE_CHAT, reply, "reply")
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
            end=of_name(ENDS, "finish_reason", reason),
            reason=reason,
            usage=usage_of(reply["usage"]),
        )

    def followed(self, events: Sequence[Event]) -> Answer:
        chunks = chunks_of(events)
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
            end=of_name(ENDS, "finish_reason of the stream", reason),
            reason=str(reason),
            usage=usage_in(chunks),
        )

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        chunks = must_be_chunks(events, "chat.completion.chunk")
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
        must_be_openai_error(reply)

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
    """Return the thought in a message or delta. Servers use two field names for it."""
    found = part.get("reasoning_content") or part.get("reasoning") or ""
    if not isinstance(found, str):
        raise Departure("reasoning", "a text", found)
    return found


_WHOLE_COMPLETION = {
    "id": str,
    "object": {"text_completion"},
    "created": NUMBER,
    "model": str,
    "choices": [{"index": int, "text": str, "finish_reason": {"stop", "length"}}],
    "usage": USAGE,
}


class Completions:
    name = "completions"
    path = "/v1/completions"

    def body(self, model: str, question: Question) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": model,
            "prompt": question.text,
            "max_tokens": question.bound,
            "temperature": 0,
            "seed": SEED,
            "stream": False,
        }
        if question.stop:
            body["stop"] = list(question.stop)
        return {**body, **dict(question.fields)}

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        options = {"include_usage": True}
        return {**self.body(model, question), "stream": True, "stream_options": options}

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        must_have(_WHOLE_COMPLETION, reply, "reply")
        must_equal("choices", 1, len(reply["choices"]))
        (choice,) = reply["choices"]
        reason = choice["finish_reason"]
        end = of_name(ENDS, "finish_reason", reason)
        usage = usage_of(reply["usage"])
        return Answer(reply["id"], choice["text"], "", (), end, reason, usage)

    def followed(self, events: Sequence[Event]) -> Answer:
        chunks = chunks_of(events)
        text, reason = "", None
        for choice in (choice for chunk in chunks for choice in chunk.get("choices") or []):
            text += choice.get("text") or ""
            reason = choice.get("finish_reason") or reason
        end = of_name(ENDS, "finish_reason of the stream", reason)
        first = str(chunks[0].get("id")) if chunks else ""
        return Answer(first, text, "", (), end, str(reason), usage_in(chunks))

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        must_be_chunks(events, "text_completion")

    def must_be_error(self, reply: Reply) -> None:
        must_be_openai_error(reply)

    def bad_requests(self, model: str) -> Sequence[BadRequest]:
        good = self.body(model, Question("Hello.", bound=1))
        return bad_requests(
            good,
            b'{"prompt": "',
            {"no prompt": {"prompt": None}, "a bound that is a word": {"max_tokens": "many"}},
        )
