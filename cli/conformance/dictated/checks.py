"""What an endpoint makes of dictated answers: the same in each API, whole and streamed."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.cli.conformance.caller import Caller
from tasuki.cli.conformance.check import Check
from tasuki.cli.conformance.checks.answers import must_be_alike
from tasuki.cli.conformance.outcome import Unserved, must, must_equal
from tasuki.cli.conformance.question import Answer, End

from . import answers
from .answers import Damage, block, saying

_THOUGHT = {"chat_template_kwargs": {"enable_thinking": True}}
_THOUGHTLESS = {"chat_template_kwargs": {"enable_thinking": False}}
_NO_THOUGHT: Mapping[str, Mapping[str, Any]] = {
    "chats": _THOUGHTLESS,
    "responses": _THOUGHTLESS,
    # Has none unless it is asked for.
    "messages": {},
}
FINISHED = {"chats": "tool_calls", "messages": "tool_use", "responses": "completed"}
UNFINISHED = {"chats": "stop", "messages": "end_turn", "responses": "completed"}
_TORN = "\ufffd"
_CUT_ARGUMENTS = {"mode": 12, "path": "a.txt", "content": 'h"i\n</b> ü'}


async def _said(
    caller: Caller, text: str, bound: int = answers.BOUND, stop: Sequence[str] = ()
) -> Answer:
    """The whole answer without a thought, once its stream was the same."""
    without_thought = _NO_THOUGHT[caller.api.name]
    whole = await caller.whole(saying(text, bound, stop, without_thought))
    must_be_alike(whole, await caller.streamed(saying(text, bound, stop, without_thought)))
    return whole


async def _thought_and_said(caller: Caller, text: str) -> Answer:
    """As _said, of an answer with a thought first. Raises Unserved without one."""
    whole = await caller.whole(saying(text, fields=_THOUGHT))
    must_be_alike(whole, await caller.streamed(saying(text, fields=_THOUGHT)))
    if not whole.thought:
        raise Unserved("the template opens no thought")
    return whole


def _must_be_calls(answer: Answer, expected: Sequence[Mapping[str, Any]], text: str) -> None:
    must_equal(f"arguments in {text!r}", [*expected], [call.value for call in answer.calls])
    names = {call.name for call in answer.calls}
    must_equal(f"names in {text!r}", {answers.WRITE_FILE.name}, names)


def damaged(damage: Damage) -> Check:
    async def run(caller: Caller) -> None:
        for text in damage.texts:
            answer = await _said(caller, text)
            _must_be_calls(answer, damage.calls, text)
            must_equal(f"text beside {text!r}", "", answer.text)
            must_equal(f"reason of {text!r}", FINISHED[caller.api.name], answer.reason)

    return Check(damage.name, run)


async def held_tags(caller: Caller) -> None:
    for value in answers.HELD_TAGS:
        text = block(answers.PATH + f"<parameter=content>\n{value}\n</parameter>\n")
        answer = await _said(caller, text)
        _must_be_calls(answer, [{"path": "a.txt", "content": value}], text)


async def text_before(caller: Caller) -> None:
    text = "I write it.\n\n" + block(answers.PATH + answers.CONTENT)
    answer = await _said(caller, text)
    must_equal("text before the call", "I write it.", answer.text.strip())
    _must_be_calls(answer, [answers.WHOLE], text)


async def left_open(caller: Caller) -> None:
    text = answers.begun(answers.PATH + answers.OPEN_CONTENT)
    answer = await _said(caller, text)
    _must_be_calls(answer, [answers.WHOLE], text)
    must_equal("reason", FINISHED[caller.api.name], answer.reason)


async def without_required(caller: Caller) -> None:
    text = block(answers.PATH)
    answer = await _said(caller, text)
    _must_be_calls(answer, [{"path": "a.txt"}], text)
    must_equal("reason", UNFINISHED[caller.api.name], answer.reason)


async def name_torn(caller: Caller) -> None:
    text = "<tool_call>\n<function=write"
    answer = await _said(caller, text)
    must_equal("calls", [], [call.name for call in answer.calls])
    must_equal("text", text, answer.text.strip())


async def stop_in_a_call(caller: Caller) -> None:
    """A stop string counts in the content alone."""
    if caller.api.name == "responses":
        raise Unserved("the API has no stop strings")
    text = block(answers.PATH + "<parameter=content>\nhi every one\n</parameter>\n")
    answer = await _said(caller, text, stop=("every",))
    _must_be_calls(answer, [{"path": "a.txt", "content": "hi every one"}], text)
    must_equal("reason", FINISHED[caller.api.name], answer.reason)


async def cut_between_tags(caller: Caller) -> None:
    body = "".join(
        f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in _CUT_ARGUMENTS.items()
    )
    await _must_be_closed_everywhere(caller, block(body))


async def cut_in_json(caller: Caller) -> None:
    arguments = json.dumps(_CUT_ARGUMENTS, ensure_ascii=False)
    await _must_be_closed_everywhere(caller, answers.in_json(arguments))


async def _must_be_closed_everywhere(caller: Caller, text: str) -> None:
    """At each bound below the answer's tokens: the reason is the length, arguments are an object,
    a string is the begin of its own, any other value is whole."""
    whole = await _said(caller, text)
    _must_be_calls(whole, [_CUT_ARGUMENTS], text)
    for bound in range(1, whole.tokens):
        cut = await _said(caller, text, bound)
        if bound + 1 < whole.tokens:
            must_equal(f"end at {bound} tokens", End.LENGTH.value, cut.end.value)
        for call in cut.calls:
            for key, value in call.value.items():
                known = _CUT_ARGUMENTS.get(key)
                good = value == known or _begins(value, known)
                must(good, f"{key} at {bound} tokens", f"the begin of {known!r}", value)
            if caller.api.name == "responses" and call.value != _CUT_ARGUMENTS:
                must_equal(f"the item's status at {bound} tokens", "incomplete", call.status)


def _begins(value: Any, whole: Any) -> bool:
    """Whether a text is the begin of another; its last character may be half of one."""
    if not isinstance(value, str) or not isinstance(whole, str):
        return False
    return whole.startswith(value.removesuffix(_TORN))


async def call_in_a_thought(caller: Caller) -> None:
    """A call in a thought without an end is a call."""
    text = "I will write it.\n" + block(answers.PATH + answers.CONTENT)
    answer = await _thought_and_said(caller, text)
    must_equal("thought", "I will write it.", answer.thought.strip())
    _must_be_calls(answer, [answers.WHOLE], text)
    must_equal("reason", FINISHED[caller.api.name], answer.reason)


async def closed_thought(caller: Caller) -> None:
    """A thought, a text and a call, each in its place."""
    text = "So it is.\n</think>\n\nI write.\n\n" + block(answers.PATH + answers.CONTENT)
    answer = await _thought_and_said(caller, text)
    must_equal("thought", "So it is.", answer.thought)
    must_equal("text", "I write.", answer.text.strip())
    _must_be_calls(answer, [answers.WHOLE], text)
