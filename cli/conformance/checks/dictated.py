"""Checks of a server with dictated answers: it returns the text given in the last message.

Such a server finds the last `say: ` of its prompt and reads the JSON string after it. It answers
with that text and ends its turn (scripts/conformance/node.py is one). So an answer can be any text
a model might write: calls with damaged tags, calls cut off anywhere.

Dictated answers must be the same in each API, whole and streamed.

Tool calls are checked as written by models, whole and damaged (docs/chats.md).
"""

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from tasuki.cli.conformance.api import Answer, End, Question, Tool
from tasuki.cli.conformance.check import Caller, Check
from tasuki.cli.conformance.outcome import Unserved, must, must_equal

from .answers import must_be_alike

SAY = "say: "
"""Marker in a prompt. The dictated answer follows it as a JSON string."""
BOUND = 2000

WRITE_FILE = Tool(
    "write_file",
    {
        "type": "object",
        "properties": {
            "path": {"type": "string"},
            "content": {"type": "string"},
            "mode": {"type": "integer"},
        },
        "required": ["path", "content"],
    },
)
LIST = Tool("list", {"type": "object"})
PATH = "<parameter=path>\na.txt\n</parameter>\n"
CONTENT = "<parameter=content>\nhi\n</parameter>\n"
OPEN_CONTENT = "<parameter=content>\nhi"
WHOLE: Mapping[str, Any] = {"path": "a.txt", "content": "hi"}
_OPEN_PATH = "<parameter=path>\na.txt\n"


def begun(body: str, name: str = "write_file") -> str:
    """Return the text of a tool call without its closing tags. body: its parameters."""
    return f"<tool_call>\n<function={name}>\n{body}"


def block(body: str, name: str = "write_file") -> str:
    return f"{begun(body, name)}</function>\n</tool_call>"


def in_json(arguments: str) -> str:
    return f'<tool_call>\n{{"name": "write_file", "arguments": {arguments}}}\n</tool_call>'


def saying(
    text: str,
    bound: int = BOUND,
    stop: Sequence[str] = (),
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> Question:
    """Return a question for a dictated answer: exactly `text`. fields: further request fields. Each
    prompt starts with a random prefix, so no cache holds it."""
    return Question(
        f"{secrets.token_hex(4)} {SAY}{json.dumps(text)}",
        bound=bound,
        tools=(WRITE_FILE, LIST),
        stop=tuple(stop),
        fields=tuple(fields.items()),
    )


@dataclass(frozen=True)
class Damage:
    """A kind of damage to a tool call's text. texts: damaged answers. The server must find exactly
    the write_file calls in `calls` in each, and no other text."""

    name: str
    texts: tuple[str, ...]
    calls: tuple[Mapping[str, Any], ...] = (WHOLE,)


_GOOD = block(PATH + CONTENT)
_TAGS = ("</parameter/>", "</parameter1>", "</parameter", "</param>", "</Parameter>")
DAMAGES = (
    Damage("a whole call between tags", (_GOOD,)),
    Damage("a whole call in JSON", (in_json(json.dumps(WHOLE)),)),
    Damage("two whole calls", (f"{_GOOD}\n{_GOOD}",), (WHOLE, WHOLE)),
    Damage(
        "damaged closing tags",
        (
            *(block(f"{_OPEN_PATH}{tag}\n<parameter=content>\nhi\n{tag}\n") for tag in _TAGS),
            _GOOD.replace("</function>", "</Function>"),
            _GOOD.replace("</function>", "</function"),
            _GOOD.replace("</tool_call>", "</tool_call/>"),
        ),
    ),
    Damage(
        "values without their closing tags",
        (
            block(_OPEN_PATH + CONTENT),
            block(PATH + "<parameter=content>\nhi\n"),
            block(_OPEN_PATH + "<parameter=content>\nhi\n"),
            _GOOD.replace("</parameter>\n", "").replace("</function>\n", ""),
        ),
    ),
    Damage(
        "closing tags twice",
        (
            _GOOD.replace("</parameter>", "</parameter>\n</parameter>"),
            _GOOD.replace("</function>", "</function>\n</function>"),
            _GOOD + "\n</tool_call>",
        ),
    ),
    Damage(
        "opening tags twice",
        (
            "<tool_call>\n" + _GOOD,
            block("<parameter=path>\n" + PATH + CONTENT),
            block("<function=write_file>\n" + PATH + CONTENT),
            block(PATH + CONTENT + PATH.replace("a.txt", "other")),
        ),
    ),
    Damage(
        "quoted names",
        (
            block(PATH + CONTENT, '"write_file"'),
            block(PATH.replace("=path", '="path"') + CONTENT.replace("=content", "='content'")),
        ),
    ),
    Damage(
        "no opening tag of the call",
        (
            _GOOD.removeprefix("<tool_call>\n"),
            _GOOD.removeprefix("<tool_call>\n").removesuffix("\n</tool_call>"),
        ),
    ),
    Damage(
        "two calls in one block",
        tuple(
            begun(PATH + OPEN_CONTENT) + "\n" + between + _GOOD.removeprefix("<tool_call>\n")
            for between in (
                "</function>\n",
                "</parameter>\n</function>\n",
                "</parameter>\n</function>\n<tool_call>\n",
                "</function>\n</tool_call>\n",
            )
        ),
        (WHOLE, WHOLE),
    ),
    Damage(
        "JSON that has to be repaired",
        (
            in_json('{"path": "a.txt", "content": "hi",}'),
            in_json('{"path": "a.txt", "content": "hi"'),
        ),
    ),
)
HELD_TAGS = (
    "a </parameter> b",
    "x\n</parameter>\n</div>",
    "<tool_call>\n<function=f>\nso",
    "x\n<parameter=other>\ny",
    "</tool_call>",
)
"""Argument values with tags inside. The server must return them unchanged."""


_THOUGHT = {"chat_template_kwargs": {"enable_thinking": True}}
_THOUGHTLESS = {"chat_template_kwargs": {"enable_thinking": False}}
_NO_THOUGHT: Mapping[str, Mapping[str, Any]] = {
    "chats": _THOUGHTLESS,
    "responses": _THOUGHTLESS,
    # Messages have no thought unless the request asks for one.
    "messages": {},
}
FINISHED = {"chats": "tool_calls", "messages": "tool_use", "responses": "completed"}
UNFINISHED = {"chats": "stop", "messages": "end_turn", "responses": "completed"}
_TORN = "\ufffd"
_CUT_ARGUMENTS = {"mode": 12, "path": "a.txt", "content": 'h"i\n</b> ü'}


async def _said(caller: Caller, text: str, bound: int = BOUND, stop: Sequence[str] = ()) -> Answer:
    """Dictate the text, and return the whole answer. The request turns thinking off. Raises
    Departure if the streamed answer differs."""
    without_thought = _NO_THOUGHT[caller.api.name]
    whole = await caller.whole(saying(text, bound, stop, without_thought))
    must_be_alike(whole, await caller.streamed(saying(text, bound, stop, without_thought)))
    return whole


async def _thought_and_said(caller: Caller, text: str) -> Answer:
    """Dictate the text as a thought and its answer, and check both as in _said. Raises Unserved if
    the answer has no thought."""
    whole = await caller.whole(saying(text, fields=_THOUGHT))
    must_be_alike(whole, await caller.streamed(saying(text, fields=_THOUGHT)))
    if not whole.thought:
        raise Unserved("the template opens no thought")
    return whole


def _must_be_calls(answer: Answer, expected: Sequence[Mapping[str, Any]], text: str) -> None:
    must_equal(f"arguments in {text!r}", [*expected], [call.value for call in answer.calls])
    names = {call.name for call in answer.calls}
    must_equal(f"names in {text!r}", {WRITE_FILE.name}, names)


def damaged(damage: Damage) -> Check:
    async def run(caller: Caller) -> None:
        for text in damage.texts:
            answer = await _said(caller, text)
            _must_be_calls(answer, damage.calls, text)
            must_equal(f"text beside {text!r}", "", answer.text)
            must_equal(f"reason of {text!r}", FINISHED[caller.api.name], answer.reason)

    return Check(damage.name, run)


async def held_tags(caller: Caller) -> None:
    for value in HELD_TAGS:
        text = block(PATH + f"<parameter=content>\n{value}\n</parameter>\n")
        answer = await _said(caller, text)
        _must_be_calls(answer, [{"path": "a.txt", "content": value}], text)


async def text_before(caller: Caller) -> None:
    text = "I write it.\n\n" + block(PATH + CONTENT)
    answer = await _said(caller, text)
    must_equal("text before the call", "I write it.", answer.text.strip())
    _must_be_calls(answer, [WHOLE], text)


async def left_open(caller: Caller) -> None:
    text = begun(PATH + OPEN_CONTENT)
    answer = await _said(caller, text)
    _must_be_calls(answer, [WHOLE], text)
    must_equal("reason", FINISHED[caller.api.name], answer.reason)


async def without_required(caller: Caller) -> None:
    text = block(PATH)
    answer = await _said(caller, text)
    _must_be_calls(answer, [{"path": "a.txt"}], text)
    must_equal("reason", UNFINISHED[caller.api.name], answer.reason)


async def name_torn(caller: Caller) -> None:
    text = "<tool_call>\n<function=write"
    answer = await _said(caller, text)
    must_equal("calls", [], [call.name for call in answer.calls])
    must_equal("text", text, answer.text.strip())


async def stop_in_a_call(caller: Caller) -> None:
    """Check a stop string inside a tool call: it must not end the answer."""
    if caller.api.name == "responses":
        raise Unserved("the API has no stop strings")
    text = block(PATH + "<parameter=content>\nhi every one\n</parameter>\n")
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
    await _must_be_closed_everywhere(caller, in_json(arguments))


async def _must_be_closed_everywhere(caller: Caller, text: str) -> None:
    """Check the dictated call with every limit below its tokens. The reason is the length, and the
    arguments are an object. A string argument is a prefix of its whole value. Any other argument is
    whole."""
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
    """Return True if `value` is a prefix of `whole`, both texts. Its last character may be cut in
    half."""
    if not isinstance(value, str) or not isinstance(whole, str):
        return False
    return whole.startswith(value.removesuffix(_TORN))


async def call_in_a_thought(caller: Caller) -> None:
    """Check a call inside an unfinished thought: it must count as a call."""
    text = "I will write it.\n" + block(PATH + CONTENT)
    answer = await _thought_and_said(caller, text)
    must_equal("thought", "I will write it.", answer.thought.strip())
    _must_be_calls(answer, [WHOLE], text)
    must_equal("reason", FINISHED[caller.api.name], answer.reason)


async def closed_thought(caller: Caller) -> None:
    """Check an answer with a thought, a text and a call, each in its place."""
    text = "So it is.\n</think>\n\nI write.\n\n" + block(PATH + CONTENT)
    answer = await _thought_and_said(caller, text)
    must_equal("thought", "So it is.", answer.thought)
    must_equal("text", "I write.", answer.text.strip())
    _must_be_calls(answer, [WHOLE], text)
