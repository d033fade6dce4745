"""Several answers to one prompt, and streams with and without usage, of chats and completions."""

from dataclasses import replace

from tasuki.cli.conformance.apis import openai
from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Departure, must, must_equal

from .answers import TEXT

_TWO = replace(TEXT, bound=8, fields=(("n", 2), ("temperature", 0.8)))
_SHORT = replace(TEXT, bound=4)


async def two_choices(caller: Caller) -> None:
    reply = await caller.whole_json(_TWO, "n")
    choices = reply["choices"]
    assert isinstance(choices, list)
    must_equal("indexes of the choices", [0, 1], sorted(each["index"] for each in choices))
    usage = openai.usage_of(reply["usage"])
    must(2 <= usage.answer <= 2 * _TWO.bound, "tokens of both answers", "2 to 16", usage.answer)


async def two_streamed_choices(caller: Caller) -> None:
    chunks = openai.chunks_of(await caller.events(_TWO, "n"))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ended = [each["index"] for each in choices if each.get("finish_reason") is not None]
    must_equal("choices that ended", [0, 1], sorted(ended))


async def usage_chunk(caller: Caller) -> None:
    """Asked for, usage stands in the last chunk alone. That chunk has no choice."""
    openai.must_end_with_usage(openai.chunks_of(await caller.events(_SHORT, "include_usage")))


async def no_usage_unasked(caller: Caller) -> None:
    body = {**caller.api.body(caller.model, _SHORT), "stream": True}
    reply = await caller.endpoint.post(caller.api.path, body)
    must_equal("status", 200, reply.status)
    for chunk in openai.chunks_of(reply.events):
        if chunk.get("usage") is not None:
            raise Departure("usage of a chunk", "none, since none was asked for", chunk["usage"])
