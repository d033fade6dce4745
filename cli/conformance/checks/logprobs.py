"""Log-probabilities: one entry a token, whole and streamed."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tasuki.cli.conformance.apis import openai
from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import must, must_equal
from tasuki.cli.conformance.shape import NUMBER, must_have

from .answers import TEXT

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


async def of_chats(caller: Caller) -> None:
    reply: Any = await caller.whole_json(_CHAT, "logprobs")
    entries = (reply["choices"][0].get("logprobs") or {}).get("content") or []
    _must_be_entries(entries, openai.usage_of(reply["usage"]).answer)


async def of_streamed_chats(caller: Caller) -> None:
    chunks = openai.chunks_of(await caller.events(_CHAT, "logprobs"))
    parts = [choice.get("logprobs") or {} for chunk in chunks for choice in chunk["choices"]]
    entries = [entry for part in parts for entry in part.get("content") or []]
    usage = openai.usage_in(chunks)
    _must_be_entries(entries, _TOKENS if usage is None else usage.answer)


def _must_be_entries(entries: Sequence[Any], tokens: int) -> None:
    must_equal("entries", tokens, len(entries))
    for number, entry in enumerate(entries):
        must_have(_ENTRY, entry, f"entry {number}")
        value, likeliest = entry["logprob"], entry["top_logprobs"]
        must(value <= 0, f"logprob of entry {number}", "0 at most", value)
        must_equal(f"likeliest tokens of entry {number}", _TOP, len(likeliest))


async def of_completions(caller: Caller) -> None:
    reply: Any = await caller.whole_json(_PROMPT, "logprobs")
    choice, tokens = reply["choices"][0], openai.usage_of(reply["usage"]).answer
    lists = choice.get("logprobs")
    must_have(_LISTS, lists, "logprobs")
    for name in _LISTS:
        must_equal(f"entries of {name}", tokens, len(lists[name]))
    must_equal("the tokens together", choice["text"], "".join(lists["tokens"]))
    offsets = lists["text_offset"]
    must(offsets == sorted(offsets), "text_offset", "numbers that grow", offsets)
