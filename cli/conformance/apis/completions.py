"""OpenAI's completions of a prompt."""

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.cli.conformance.endpoint import Event, Reply
from tasuki.cli.conformance.outcome import must_equal
from tasuki.cli.conformance.question import Answer, Question
from tasuki.cli.conformance.shape import NUMBER, must_have

from . import openai
from .api import of_name
from .bad_request import BadRequest, bad_requests

_WHOLE = {
    "id": str,
    "object": {"text_completion"},
    "created": NUMBER,
    "model": str,
    "choices": [{"index": int, "text": str, "finish_reason": {"stop", "length"}}],
    "usage": openai.USAGE,
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
            "seed": openai.SEED,
            "stream": False,
        }
        if question.stop:
            body["stop"] = list(question.stop)
        return {**body, **dict(question.fields)}

    def stream_body(self, model: str, question: Question) -> dict[str, Any]:
        options = {"include_usage": True}
        return {**self.body(model, question), "stream": True, "stream_options": options}

    def whole(self, reply: Mapping[str, Any]) -> Answer:
        must_have(_WHOLE, reply, "reply")
        must_equal("choices", 1, len(reply["choices"]))
        (choice,) = reply["choices"]
        reason = choice["finish_reason"]
        end = of_name(openai.ENDS, "finish_reason", reason)
        usage = openai.usage_of(reply["usage"])
        return Answer(reply["id"], choice["text"], "", (), end, reason, usage)

    def followed(self, events: Sequence[Event]) -> Answer:
        chunks = openai.chunks_of(events)
        text, reason = "", None
        for choice in (choice for chunk in chunks for choice in chunk.get("choices") or []):
            text += choice.get("text") or ""
            reason = choice.get("finish_reason") or reason
        end = of_name(openai.ENDS, "finish_reason of the stream", reason)
        first = str(chunks[0].get("id")) if chunks else ""
        return Answer(first, text, "", (), end, str(reason), openai.usage_in(chunks))

    def must_be_ordered(self, events: Sequence[Event]) -> None:
        openai.must_be_chunks(events, "text_completion")

    def must_be_error(self, reply: Reply) -> None:
        openai.must_be_openai_error(reply)

    def bad_requests(self, model: str) -> Sequence[BadRequest]:
        good = self.body(model, Question("Hello.", bound=1))
        return bad_requests(
            good,
            b'{"prompt": "',
            {"no prompt": {"prompt": None}, "a bound that is a word": {"max_tokens": "many"}},
        )
