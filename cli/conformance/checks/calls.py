"""Tool calls: chosen, forced, cut at every length, and their results."""

from collections.abc import AsyncIterator
from dataclasses import replace

from tasuki.cli.conformance.api import Answer, CallResult, Choice, End, Question, Tool
from tasuki.cli.conformance.check import Caller
from tasuki.cli.conformance.outcome import Departure, Unserved, must, must_equal

from .answers import must_stream_alike

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
_BOUNDS = ("max_tokens", "max_output_tokens")


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
        # OpenAI ends a named call so, vLLM and others by tool_calls.
        answer = replace(answer, end=End.CALLS)
    _must_be_calls(answer)


def _must_be_calls(answer: Answer) -> None:
    """Of calls that are whole: they may be run."""
    must_equal("end", End.CALLS.value, answer.end.value)
    tools = {tool.name: tool for tool in CALL.tools}
    for call in answer.calls:
        must(call.name in tools, "name of a call", f"one of {[*tools]}", call.name)
        for key in tools[call.name].required:
            must(key in call.value, f"arguments of {call.name}", f"a value of {key}", call.value)


async def result(caller: Caller) -> None:
    """A call of an earlier turn and its result are taken."""
    answer = await caller.whole(replace(CALL, history=(_RESULT,)), "tools")
    assert answer.usage is not None
    must(answer.usage.prompt > 0, "tokens of the prompt", "more than 0", answer.usage.prompt)


class CutCalls:
    """A call at each bound below its tokens, asked for once for both of its checks.

    Owns the answers. One caller's."""

    def __init__(self) -> None:
        self._called: tuple[Question, Answer] | None = None
        self._answers: dict[int, Answer | Unserved] = {}

    async def are_not_finished(self, caller: Caller) -> None:
        """No bound makes a cut call runnable."""
        async for bound, answer in self._cuts(caller):
            if answer.tokens < bound:
                continue
            must_equal(f"end at a bound of {bound}", End.LENGTH.value, answer.end.value)
            for call in answer.calls:
                if call.status == "completed":
                    _must_be_calls(replace(answer, end=End.CALLS))

    async def parse(self, caller: Caller) -> None:
        """Arguments of a call that was cut off are an object, or there is no call."""
        async for bound, answer in self._cuts(caller):
            for call in answer.calls:
                what = f"arguments at a bound of {bound}"
                must(call.parses, what, "a JSON object", call.arguments)

    async def _cuts(self, caller: Caller) -> AsyncIterator[tuple[int, Answer]]:
        """Raises Departure where a stream differs from its whole answer, Unserved where the model
        calls nothing or no bound is taken."""
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
