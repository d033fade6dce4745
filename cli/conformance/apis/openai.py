"""What chats and completions of OpenAI have in common: errors, usage, chunks."""

from collections.abc import Sequence
from typing import Any

from tasuki.cli.conformance.endpoint import Event, Reply
from tasuki.cli.conformance.outcome import Departure, must, must_equal
from tasuki.cli.conformance.question import End, Usage
from tasuki.cli.conformance.shape import NUMBER, must_have

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
    """Raises Departure where the sum is wrong."""
    must_have(USAGE, value, "usage")
    prompt, answer = value["prompt_tokens"], value["completion_tokens"]
    must_equal("usage.total_tokens", prompt + answer, value["total_tokens"])
    return Usage(prompt, answer)


def must_be_openai_error(reply: Reply) -> None:
    must_equal("content type of an error", "application/json", reply.content_type)
    must_have(_ERROR, reply.json, "body")


def chunks_of(events: Sequence[Event]) -> list[dict[str, Any]]:
    """All but [DONE]. Raises Departure where an event is no object, or an error."""
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
    """Raises Departure unless all chunks have one id, model and time, usage comes last and alone,
    each choice ends once, and [DONE] ends the stream."""
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
    """Of a stream that was asked for usage. Raises Departure."""
    *before, last = chunks
    must(last.get("usage") is not None, "the last chunk's usage", "an object", last.get("usage"))
    must_equal("choices of the chunk with usage", [], last["choices"])
    usage_of(last["usage"])
    for number, chunk in enumerate(before):
        must(chunk.get("usage") is None, f"chunk {number}'s usage", "null or none", chunk)


def usage_in(chunks: Sequence[dict[str, Any]]) -> Usage | None:
    """The last chunk's that has one."""
    found = [chunk["usage"] for chunk in chunks if chunk.get("usage") is not None]
    return usage_of(found[-1]) if found else None
