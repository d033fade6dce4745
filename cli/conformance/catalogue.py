"""Which checks each API has. Pure."""

from collections.abc import Mapping, Sequence

from .apis.api import Api
from .apis.chats import Chats
from .apis.completions import Completions
from .apis.messages import Messages
from .apis.responses import Responses
from .check import Check
from .checks import (
    answers,
    calls,
    choices,
    counted,
    ends,
    errors,
    logprobs,
    models,
    schemas,
    stored,
)

APIS: Mapping[str, Api] = {
    api.name: api for api in (Chats(), Completions(), Messages(), Responses())
}
MODELS = "models"
_WITH_TOOLS = ("chats", "messages", "responses")

MODEL_CHECKS = (
    Check("the list has the model", models.listed),
    Check("one model by its id", models.one_model),
    Check("an unknown id is 404", models.unknown_model),
)
_ANSWERS = (
    Check("a whole reply has its fields", answers.whole_reply),
    Check("a reply is whole where no stream is asked for", answers.whole_by_default),
    Check("a stream's events are in order, with one id", answers.ordered_stream),
    Check("a stream is the whole reply", answers.stream_is_whole),
    Check("usage of a stream is the whole reply's", answers.usage_is_alike),
    Check("usage counts both sides", answers.usage_counts),
    Check("ids differ between requests", answers.ids_differ),
    Check("a bound of tokens ends the answer", ends.length),
)
_ONE_TOKEN = Check("a bound of one token", ends.one_token)
_STOP = Check("a stop string ends the answer before it", ends.stop)
_CALLS = (
    Check("a call of the model's own accord", calls.chosen),
    Check("a required call", calls.required),
    Check("a named call", calls.named),
    Check("a call's result is taken", calls.result),
)
_SCHEMAS = (
    Check("an answer follows a flat schema", schemas.flat),
    Check("an answer follows a nested schema", schemas.nested),
)
_CHUNKS = (
    Check("usage is the last chunk's, where asked for", choices.usage_chunk),
    Check("no usage, where not asked for", choices.no_usage_unasked),
    Check("two answers to one prompt", choices.two_choices),
    Check("two streamed answers to one prompt", choices.two_streamed_choices),
)
_OWN: Mapping[str, Sequence[Check]] = {
    "chats": (
        *(_ONE_TOKEN, _STOP, *_CHUNKS),
        Check("logprobs have one entry a token", logprobs.of_chats),
        Check("streamed logprobs have one entry a token", logprobs.of_streamed_chats),
        *(*_CALLS, *_SCHEMAS),
    ),
    "completions": (
        *(_ONE_TOKEN, _STOP, *_CHUNKS),
        Check("logprobs have one entry a token", logprobs.of_completions),
    ),
    "messages": (
        *(_ONE_TOKEN, _STOP),
        Check("count_tokens is the usage's", counted.count_is_usage),
        *(*_CALLS, *_SCHEMAS),
    ),
    "responses": (
        Check("a stored response is the reply", stored.retrieved),
        Check("a conversation goes on by previous_response_id", stored.gone_on_from),
        Check("a deleted response is gone", stored.deleted),
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
    return [*_ANSWERS, *_OWN[api.name], *cut, *errors.refusals(api)]
