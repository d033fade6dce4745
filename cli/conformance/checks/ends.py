"""How answers end: by their length, by a stop string."""

from dataclasses import replace

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.outcome import Unserved, must, must_equal
from tasuki.cli.conformance.question import Answer, End

from .answers import TEXT, must_stream_alike

_BOUNDS = ("max_tokens", "max_output_tokens")
_STOPS = ("stop", "stop_sequences")
_STOP_LETTERS = 2


async def one_token(caller: Caller) -> None:
    answer = await must_stream_alike(caller, replace(TEXT, bound=1), *_BOUNDS)
    if answer.end is End.DONE and not answer.text:
        raise Unserved("the answer is empty")
    must_equal("end", End.LENGTH.value, answer.end.value)
    must_equal("tokens of the answer", 1, answer.tokens)


async def length(caller: Caller) -> None:
    """At half of its tokens an answer is the beginning of itself."""
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


async def stop(caller: Caller) -> None:
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
    """Some letters that come first in the midst of the text. Raises Unserved."""
    text = answer.text
    for start in range(max(1, len(text) // 3), len(text) - _STOP_LETTERS):
        word = text[start : start + _STOP_LETTERS]
        if not any(map(str.isspace, word)) and text.find(word) > 0:
            return word
    raise Unserved(f"the answer has no text to stop in: {text!r}")
