"""The options of an OpenAI-shaped request: sampling, stops, streaming.

Pure functions. A field that would change the answer and that this engine cannot honour is refused,
never ignored; fields about accounts, storage and routing are ignored.
"""

import secrets
from dataclasses import dataclass
from typing import Any

from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.server.errors import InvalidField
from tasuki.server.request_checks import (
    MAX_STOP_TOKENS,
    asked_sampling,
    check_stops,
    check_vocabulary,
    to_tokens,
)
from tasuki.server.text.text_codec import TextCodec

from .request_fields import RequestFields

# Field to the values that ask for the default behaviour.
_WITHOUT_EFFECT: dict[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "min_p": (0,),
    "min_tokens": (0,),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "repetition_penalty": (1,),
    "logit_bias": ({},),
    "functions": ([],),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "use_beam_search": (False,),
}


@dataclass(frozen=True)
class AnswerOptions:
    """include_usage: a stream ends with a chunk of usage."""

    sampling: SamplingParams
    stops: tuple[str, ...]
    stream: bool
    include_usage: bool


def read_options(fields: RequestFields, codec: TextCodec, default_new_tokens: int) -> AnswerOptions:
    for name, harmless in _WITHOUT_EFFECT.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            raise InvalidField(name, f"is not supported here: leave it out, or {harmless[0]!r}")
    return AnswerOptions(
        sampling=_sampling(fields, codec, default_new_tokens),
        stops=_stops(fields),
        stream=fields.flag("stream"),
        include_usage=fields.fields("stream_options").flag("include_usage"),
    )


def check_alternatives(field: str, count: int, options: AnswerOptions) -> None:
    """The engine reports one logprob a token, the chosen token's; at temperature 0 the chosen token
    is the likeliest. Raises InvalidField."""
    if not 0 <= count <= (1 if options.sampling.temperature == 0 else 0):
        raise InvalidField(
            field, "must be 0, or at most 1 at temperature 0: only the chosen token's is known"
        )


def _sampling(fields: RequestFields, codec: TextCodec, default_new_tokens: int) -> SamplingParams:
    new_tokens = fields.integer("max_completion_tokens")
    if new_tokens is None:
        new_tokens = fields.integer("max_tokens")
    temperature, top_p, seed = fields.number("temperature"), fields.number("top_p"), _seed(fields)
    stop_tokens = fields.items("stop_token_ids")
    if len(stop_tokens) > MAX_STOP_TOKENS:
        raise InvalidField("stop_token_ids", f"may hold at most {MAX_STOP_TOKENS}")
    stops = to_tokens("stop_token_ids", stop_tokens)
    check_vocabulary("stop_token_ids", stops, codec.vocab_size)
    try:
        return asked_sampling(
            codec.vocab_size,
            max_new_tokens=default_new_tokens if new_tokens is None else new_tokens,
            # OpenAI's default, which clients rely on; gRPC's is greedy.
            temperature=1.0 if temperature is None else temperature,
            # vLLM's clients write -1 for "every token".
            top_k=max(0, top_k) if (top_k := fields.integer("top_k") or 0) >= -1 else top_k,
            top_p=1.0 if top_p is None else top_p,
            seed=seed,
            stop_token_ids=tuple(stops.tolist()),
            ignore_eos=fields.flag("ignore_eos"),
        )
    except ValueError as error:
        name, _, complaint = str(error).partition(" ")
        raise InvalidField("max_tokens" if name == "max_new_tokens" else name, complaint) from error


def _seed(fields: RequestFields) -> int:
    """A fresh one where none is given: equal requests are then answered differently."""
    seed = fields.integer("seed")
    return secrets.randbits(62) if seed is None else seed


def _stops(fields: RequestFields) -> tuple[str, ...]:
    stop = fields.get("stop")
    stops = [stop] if isinstance(stop, str) else fields.items("stop")
    return check_stops("stop", stops)
