"""Options of OpenAI's chats and completions: several choices, usage, log-probabilities.

Several answers to one prompt, and streams with and without usage, of chats and completions.

Log-probabilities: one entry a token, whole and streamed.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tasuki.cli.conformance import openai_api
from tasuki.cli.conformance.check import Caller
from tasuki.cli.conformance.outcome import NUMBER, Departure, must, must_equal, must_have

from .answers import TEXT

_TWO = replace(TEXT, bound=8, fields=(("n", 2), ("temperature", 0.8)))
_SHORT = replace(TEXT, bound=4)


async def two_choices(caller: Caller) -> None:
    reply = await caller.whole_json(_TWO, "n")
    choices = reply["choices"]
    assert isinstance(choices, list)
    must_equal("indexes of the choices", [0, 1], sorted(each["index"] for each in choices))
    usage = openai_api.usage_of(reply["usage"])
    must(2 <= usage.answer <= 2 * _TWO.bound, "tokens of both answers", "2 to 16", usage.answer)


async def two_streamed_choices(caller: Caller) -> None:
    chunks = openai_api.chunks_of(await caller.events(_TWO, "n"))
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    ended = [each["index"] for each in choices if each.get("finish_reason") is not None]
    must_equal("choices that ended", [0, 1], sorted(ended))


async def usage_chunk(caller: Caller) -> None:
    """Asked for, usage stands in the last chunk alone. That chunk has no choice."""
    openai_api.must_end_with_usage(
        openai_api.chunks_of(await caller.events(_SHORT, "include_usage"))
    )


async def no_usage_unasked(caller: Caller) -> None:
    body = {**caller.api.body(caller.model, _SHORT), "stream": True}
    reply = await caller.endpoint.post(caller.api.path, body)
    must_equal("status", 200, reply.status)
    for chunk in openai_api.chunks_of(reply.events):
        if chunk.get("usage") is not None:
            raise Departure("usage of a chunk", "none, since none was asked for", chunk["usage"])


_TOKENS, _TOP = 4, 2
_CHAT = replace(TEXT, bound=_TOKENS, fields=(("logprobs", True), ("top_logprobs", _TOP)))
_PROMPT = replace(TEXT, bound=_TOKENS, fields=(("logprobs", _TOP),))
_ONE = {"token": str, "logprob": NUMBER, "bytes?": [int]}
_ENTRY = {**_ONE, "top_logprobs": [_ONE]}
_LISTS = {
    "tokens": [str],
    "token_logprobs": [(*NUMBER, type(None))],
    "text_offset": [int],
    "top_logprobs": [(dict, type(None))],
}


async def logprobs_of_chats(caller: Caller) -> None:
    reply: Any = await caller.whole_json(_CHAT, "logprobs")
    entries = (reply["choices"][0].get("logprobs") or {}).get("content") or []
    _must_be_entries(entries, openai_api.usage_of(reply["usage"]).answer)


async def logprobs_of_streamed_chats(caller: Caller) -> None:
    chunks = openai_api.chunks_of(await caller.events(_CHAT, "logprobs"))
    parts = [choice.get("logprobs") or {} for chunk in chunks for choice in chunk["choices"]]
    entries = [entry for part in parts for entry in part.get("content") or []]
    usage = openai_api.usage_in(chunks)
    _must_be_entries(entries, _TOKENS if usage is None else usage.answer)


def _must_be_entries(entries: Sequence[Any], tokens: int) -> None:
    must_equal("entries", tokens, len(entries))
    for number, entry in enumerate(entries):
        must_have(_ENTRY, entry, f"entry {number}")
        value, likeliest = entry["logprob"], entry["top_logprobs"]
        must(value <= 0, f"logprob of entry {number}", "0 at most", value)
        must_equal(f"likeliest tokens of entry {number}", _TOP, len(likeliest))


async def logprobs_of_completions(caller: Caller) -> None:
    reply: Any = await caller.whole_json(_PROMPT, "logprobs")
    choice, tokens = reply["choices"][0], openai_api.usage_of(reply["usage"]).answer
    lists = choice.get("logprobs")
    must_have(_LISTS, lists, "logprobs")
    for name in _LISTS:
        must_equal(f"entries of {name}", tokens, len(lists[name]))
    must_equal("the tokens together", choice["text"], "".join(lists["tokens"]))
    offsets = lists["text_offset"]
    must(offsets == sorted(offsets), "text_offset", "numbers that grow", offsets)
