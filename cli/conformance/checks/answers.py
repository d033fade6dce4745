"""Checks of answers and tool calls: whole and streamed, their ends, counts and formats.

Covers whole answers, their streams, ids and usage, and ends by length and by stop strings. Covers
tokens of a Messages prompt counted without an answer, and answers in a JSON schema. Tool calls are
chosen, forced, cut at every length, and followed by their results.

Covers options of OpenAI's chats and completions: several answers to one prompt, and streams with
and without usage. Log-probabilities have one entry a token, whole and streamed.
"""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tasuki.cli.conformance import openai_api
from tasuki.cli.conformance.api import Answer, CallResult, Choice, End, Question, Tool
from tasuki.cli.conformance.check import Caller
from tasuki.cli.conformance.outcome import NUMBER, Departure, Unserved, must, must_equal, must_have

TEXT = Question('Say "It was so and so it is."')
_UNSTEADY = "two whole answers at temperature 0 differ too"


async def whole_reply(caller: Caller) -> None:
    await caller.whole(TEXT)


async def ordered_stream(caller: Caller) -> None:
    caller.api.must_be_ordered(await caller.events(TEXT))


async def whole_by_default(caller: Caller) -> None:
    """Check that a request without the field `stream` gets one whole reply."""
    body = caller.api.body(caller.model, TEXT)
    del body["stream"]
    reply = await caller.endpoint.post(caller.api.path, body)
    must_equal("status", 200, reply.status)
    caller.api.whole(reply.json)


async def stream_is_whole(caller: Caller) -> None:
    """Check a stream against the whole (not streamed) answer: their texts must be equal, including
    white space."""
    whole, streamed = await caller.whole(TEXT), await caller.streamed(TEXT)
    if whole.parts != streamed.parts and (await caller.whole(TEXT)).parts != whole.parts:
        raise Unserved(_UNSTEADY)
    must_be_alike(whole, streamed)


async def must_stream_alike(caller: Caller, question: Question, *features: str) -> Answer:
    """Ask the question whole and streamed, and return the whole answer, trimmed. Raises Departure
    if the stream gives another answer, ignoring white space around its texts. Raises Unserved if
    two whole answers differ too."""
    whole = (await caller.whole(question, *features)).trimmed
    streamed = (await caller.streamed(question, *features)).trimmed
    if whole.parts != streamed.parts:
        again = (await caller.whole(question, *features)).trimmed
        if again.parts != whole.parts:
            raise Unserved(_UNSTEADY)
    must_be_alike(whole, streamed)
    return whole


def must_be_alike(whole: Answer, streamed: Answer) -> None:
    """Raise Departure if the whole and the streamed answer differ, except in ids and usage."""
    for part, value in whole.parts.items():
        must_equal(f"{part} of the stream", value, streamed.parts[part])


async def usage_is_alike(caller: Caller) -> None:
    whole, streamed = await caller.whole(TEXT), await caller.streamed(TEXT)
    if whole.trimmed.parts != streamed.trimmed.parts:
        raise Unserved("the answers differ")
    must_equal("usage of the stream", whole.usage, streamed.usage)


async def usage_counts(caller: Caller) -> None:
    """Check an answer's usage: the token counts of prompt and answer, and the limit of the
    answer."""
    answer = await caller.whole(TEXT)
    assert answer.usage is not None
    must(answer.usage.prompt > 0, "tokens of the prompt", "more than 0", answer.usage.prompt)
    allowed = f"1 to {TEXT.bound}"
    must(0 < answer.tokens <= TEXT.bound, "tokens of the answer", allowed, answer.tokens)


async def ids_differ(caller: Caller) -> None:
    answers = [await caller.whole(TEXT), await caller.streamed(TEXT), await caller.whole(TEXT)]
    ids = [answer.id for answer in answers]
    must(all(ids), "ids of three answers", "no empty one", ids)
    must(len({*ids}) == len(ids), "ids of three answers", "three ids", ids)


_BOUNDS = ("max_tokens", "max_output_tokens")
_STOPS = ("stop", "stop_sequences")
_STOP_LETTERS = 2


async def end_of_one_token(caller: Caller) -> None:
    answer = await must_stream_alike(caller, replace(TEXT, bound=1), *_BOUNDS)
    if answer.end is End.DONE and not answer.text:
        raise Unserved("the answer is empty")
    must_equal("end", End.LENGTH.value, answer.end.value)
    must_equal("tokens of the answer", 1, answer.tokens)


async def end_by_length(caller: Caller) -> None:
    """Check an answer with a limit of half of its tokens: it is a prefix of the whole answer."""
    whole = (await caller.whole(TEXT)).trimmed
    bound = whole.tokens // 2
    if not bound:
        raise Unserved(f"the answer has {whole.tokens} tokens")
    cut = await must_stream_alike(caller, replace(TEXT, bound=bound), *_BOUNDS)
    must_equal("end", End.LENGTH.value, cut.end.value)
    must_equal("tokens of the answer", bound, cut.tokens)
    for name in ("thought", "text"):
        before, after = str(cut.parts[name]), str(whole.parts[name])
        must(after.startswith(before), f"{name} of the cut answer", f"the begin of {after}", before)


async def end_by_stop(caller: Caller) -> None:
    whole = (await caller.whole(TEXT)).trimmed
    word = _inner_word(whole)
    question = replace(TEXT, stop=(word,))
    stopped = await must_stream_alike(caller, question, *_STOPS)
    before = whole.text[: whole.text.find(word)]
    must_equal(f"text before {word!r}", before.rstrip(), stopped.text.rstrip())
    if caller.api.name == "messages":
        must_equal("stop_reason", "stop_sequence", stopped.reason)
        reply = await caller.whole_json(question, *_STOPS)
        must_equal("stop_sequence", word, reply.get("stop_sequence"))
    else:
        must_equal("finish_reason", "stop", stopped.reason)


def _inner_word(answer: Answer) -> str:
    """Return a few letters of the answer's text, for a stop string. They occur first in the middle
    of the text. Raises Unserved if there are none."""
    text = answer.text
    for start in range(max(1, len(text) // 3), len(text) - _STOP_LETTERS):
        word = text[start : start + _STOP_LETTERS]
        if not any(map(str.isspace, word)) and text.find(word) > 0:
            return word
    raise Unserved(f"the answer has no text to stop in: {text!r}")


async def count_is_usage(caller: Caller) -> None:
    body = caller.api.body(caller.model, TEXT)
    counted = {key: body[key] for key in ("model", "messages")}
    reply = await caller.endpoint.post(f"{caller.api.path}/count_tokens", counted)
    if reply.status in (404, 405, 501):
        raise Unserved(f"no count_tokens here: {reply.status}")
    must_equal("status", 200, reply.status)
    must_have({"input_tokens": int}, reply.json, "body")
    answer = await caller.whole(TEXT)
    assert answer.usage is not None
    must_equal("input_tokens", answer.usage.prompt, reply.json["input_tokens"])


FLAT = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
NESTED = {
    "type": "object",
    "properties": {
        "days": {"type": "array", "items": {"enum": ["mon", "tue"]}, "minItems": 1, "maxItems": 3},
        "open": {"type": "boolean"},
        "at": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 8}]},
    },
    "required": ["days", "open", "at"],
    "additionalProperties": False,
}
_FIELDS = ("response_format", "output_config", "json_schema", "text.format")


async def flat_schema(caller: Caller) -> None:
    await _must_follow(caller, 'Write {"name": "Emma", "age": 21}.', FLAT)


async def nested_schema(caller: Caller) -> None:
    await _must_follow(
        caller, 'Write {"days": ["mon", "tue"], "open": true, "at": "noon"}.', NESTED
    )


async def _must_follow(caller: Caller, text: str, schema: Mapping[str, Any]) -> None:
    try:
        import jsonschema
    except ImportError as missing:
        raise Unserved("needs jsonschema: pip install jsonschema") from missing
    answer = await must_stream_alike(caller, Question(text, schema=schema), *_FIELDS)
    if answer.end is not End.DONE:
        raise Unserved(f"the answer ended {answer.end.value}")
    try:
        value = json.loads(answer.text)
    except (ValueError, RecursionError) as error:
        raise Departure("the answer", "JSON", answer.text) from error
    for found in jsonschema.Draft202012Validator(schema).iter_errors(value):
        raise Departure("the answer", "a value of the schema", f"{answer.text}: {found.message}")


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
    """Check a stream with usage requested: only the last chunk has usage, and it has no choices."""
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


WEATHER = Tool(
    "get_weather",
    {
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
)
_CLOCK = Tool("get_time", {"type": "object", "properties": {"zone": {"type": "string"}}})
CALL = Question('Call get_weather with city="Bath", days=3.', tools=(WEATHER, _CLOCK))
_RESULT = CallResult("get_weather", {"city": "Bath", "days": 3}, "It is sunny in Bath.")
_MOST_CUTS = 64


async def chosen(caller: Caller) -> None:
    answer = await must_stream_alike(caller, CALL, "tools")
    if not answer.calls:
        raise Unserved(f"the model called nothing: {answer.text!r}")
    _must_be_calls(answer)


async def required(caller: Caller) -> None:
    question = replace(CALL, choice=Choice.REQUIRED)
    answer = await must_stream_alike(caller, question, "tool_choice", "tools")
    must(bool(answer.calls), "calls", "one at least", answer.text)
    _must_be_calls(answer)


async def named(caller: Caller) -> None:
    question = replace(CALL, choice=Choice.NAMED)
    answer = await must_stream_alike(caller, question, "tool_choice", "tools")
    must(bool(answer.calls), "calls", "one at least", answer.text)
    for call in answer.calls:
        must_equal("name of the call", WEATHER.name, call.name)
    if answer.end is End.DONE:
        # OpenAI ends a named call with `stop`, vLLM and others with `tool_calls`.
        answer = replace(answer, end=End.CALLS)
    _must_be_calls(answer)


def _must_be_calls(answer: Answer) -> None:
    """Check complete calls: each names a known tool and has its required arguments, so it can be
    run."""
    must_equal("end", End.CALLS.value, answer.end.value)
    tools = {tool.name: tool for tool in CALL.tools}
    for call in answer.calls:
        must(call.name in tools, "name of a call", f"one of {[*tools]}", call.name)
        for key in tools[call.name].required:
            must(key in call.value, f"arguments of {call.name}", f"a value of {key}", call.value)


async def result(caller: Caller) -> None:
    """Check that the server accepts a call of an earlier turn and its result."""
    answer = await caller.whole(replace(CALL, history=(_RESULT,)), "tools")
    assert answer.usage is not None
    must(answer.usage.prompt > 0, "tokens of the prompt", "more than 0", answer.usage.prompt)


class CutCalls:
    """A tool call requested once with every token limit smaller than itself. Two checks share the
    answers.

    Owns the answers. Used by one caller.
    """

    def __init__(self) -> None:
        self._called: tuple[Question, Answer] | None = None
        self._answers: dict[int, Answer | Unserved] = {}

    async def are_not_finished(self, caller: Caller) -> None:
        """Check each cut-off call: its answer ends by length, so a client never runs the call."""
        async for bound, answer in self._cuts(caller):
            if answer.tokens < bound:
                continue
            must_equal(f"end at a bound of {bound}", End.LENGTH.value, answer.end.value)
            for call in answer.calls:
                if call.status == "completed":
                    _must_be_calls(replace(answer, end=End.CALLS))

    async def parse(self, caller: Caller) -> None:
        """Check each cut-off call: its arguments are a JSON object. An answer without a call
        passes."""
        async for bound, answer in self._cuts(caller):
            for call in answer.calls:
                what = f"arguments at a bound of {bound}"
                must(call.parses, what, "a JSON object", call.arguments)

    async def _cuts(self, caller: Caller) -> AsyncIterator[tuple[int, Answer]]:
        """Yield each token limit with the answer cut off there. Raises Departure if a stream
        differs from its whole answer. Raises Unserved if the model calls no tool, or the server
        accepts no limit."""
        if self._called is None:
            self._called = await _called(caller)
        question, whole = self._called
        refusal = Unserved(f"the call has {whole.tokens} tokens")
        taken = 0
        for bound in range(1, min(whole.tokens, _MOST_CUTS)):
            found = await self._cut(caller, question, bound)
            if isinstance(found, Unserved):
                refusal = found
                continue
            taken += 1
            yield bound, found
        if not taken:
            raise refusal

    async def _cut(self, caller: Caller, question: Question, bound: int) -> Answer | Unserved:
        if bound not in self._answers:
            try:
                cut = replace(question, bound=bound)
                self._answers[bound] = await must_stream_alike(caller, cut, *_BOUNDS)
            except Unserved as unserved:
                self._answers[bound] = unserved
        return self._answers[bound]


async def _called(caller: Caller) -> tuple[Question, Answer]:
    forced = replace(CALL, choice=Choice.REQUIRED)
    try:
        return forced, await _calling(caller, forced)
    except (Unserved, Departure):
        return CALL, await _calling(caller, CALL)


async def _calling(caller: Caller, question: Question) -> Answer:
    answer = await caller.whole(question, "tool_choice", "tools")
    if not answer.calls:
        raise Unserved(f"the model called nothing: {answer.text!r}")
    return answer
