"""Which checks each API has, the dictated ones apart. Pure."""

from collections.abc import Mapping, Sequence

from tasuki.cli.conformance.checks.dictated import DAMAGES

from .api import Api
from .check import Check
from .checks import answers, calls, dictated, openai_options, service
from .messages_api import Messages
from .openai_api import Chats, Completions
from .responses_api import Responses

APIS: Mapping[str, Api] = {
    api.name: api for api in (Chats(), Completions(), Messages(), Responses())
}
MODELS = "models"
_WITH_TOOLS = ("chats", "messages", "responses")

MODEL_CHECKS = (
    Check("the list has the model", service.listed),
    Check("one model by its id", service.one_model),
    Check("an unknown id is 404", service.unknown_model),
)
_ANSWERS = (
    Check("a whole reply has its fields", answers.whole_reply),
    Check("a reply is whole where no stream is asked for", answers.whole_by_default),
    Check("a stream's events are in order, with one id", answers.ordered_stream),
    Check("a stream is the whole reply", answers.stream_is_whole),
    Check("usage of a stream is the whole reply's", answers.usage_is_alike),
    Check("usage counts both sides", answers.usage_counts),
    Check("ids differ between requests", answers.ids_differ),
    Check("a bound of tokens ends the answer", answers.end_by_length),
)
_ONE_TOKEN = Check("a bound of one token", answers.end_of_one_token)
_STOP = Check("a stop string ends the answer before it", answers.end_by_stop)
_CALLS = (
    Check("a call of the model's own accord", calls.chosen),
    Check("a required call", calls.required),
    Check("a named call", calls.named),
    Check("a call's result is taken", calls.result),
)
_SCHEMAS = (
    Check("an answer follows a flat schema", answers.flat_schema),
    Check("an answer follows a nested schema", answers.nested_schema),
)
_CHUNKS = (
    Check("usage is the last chunk's, where asked for", openai_options.usage_chunk),
    Check("no usage, where not asked for", openai_options.no_usage_unasked),
    Check("two answers to one prompt", openai_options.two_choices),
    Check("two streamed answers to one prompt", openai_options.two_streamed_choices),
)
_OWN: Mapping[str, Sequence[Check]] = {
    "chats": (
        *(_ONE_TOKEN, _STOP, *_CHUNKS),
        Check("logprobs have one entry a token", openai_options.logprobs_of_chats),
        Check(
            "streamed logprobs have one entry a token", openai_options.logprobs_of_streamed_chats
        ),
        *(*_CALLS, *_SCHEMAS),
    ),
    "completions": (
        *(_ONE_TOKEN, _STOP, *_CHUNKS),
        Check("logprobs have one entry a token", openai_options.logprobs_of_completions),
    ),
    "messages": (
        *(_ONE_TOKEN, _STOP),
        Check("count_tokens is the usage's", answers.count_is_usage),
        *(*_CALLS, *_SCHEMAS),
    ),
    "responses": (
        Check("a stored response is the reply", service.stored_is_retrieved),
        Check("a conversation goes on by previous_response_id", service.stored_is_gone_on_from),
        Check("a deleted response is gone", service.stored_is_deleted),
        *(*_CALLS, *_SCHEMAS),
    ),
}


def _cut_calls() -> list[Check]:
    cuts = calls.CutCalls()
    return [
        Check("a call that is cut off is not finished, at every length", cuts.are_not_finished),
        Check("arguments of a call that is cut off parse, at every length", cuts.parse),
    ]


def checks_of(api: Api) -> list[Check]:
    """Of one run."""
    cut = _cut_calls() if api.name in _WITH_TOOLS else []
    return [*_ANSWERS, *_OWN[api.name], *cut, *service.refusals(api)]


_DICTATED_CALLS = (
    Check("a value may hold tags", dictated.held_tags),
    Check("text before a call stays text", dictated.text_before),
    Check("a call that the model left open is closed, and may be run", dictated.left_open),
    Check("a call without a required value is not to be run", dictated.without_required),
    Check("a name that is cut off is text", dictated.name_torn),
    Check("a stop string in a call does not count", dictated.stop_in_a_call),
    Check("a call between tags is closed at every length", dictated.cut_between_tags),
    Check("a call in JSON is closed at every length", dictated.cut_in_json),
)
_DICTATED_THOUGHTS = (
    Check("a call in a thought that is never closed", dictated.call_in_a_thought),
    Check("a thought, a text and a call", dictated.closed_thought),
)


def dictated_checks_of(api: Api) -> list[Check]:
    """None of an API without tools."""
    if api.name not in dictated.FINISHED:
        return []
    thoughts = () if api.name == "messages" else _DICTATED_THOUGHTS
    return [*map(dictated.damaged, DAMAGES), *_DICTATED_CALLS, *thoughts]
