"""The options of an OpenAI-shaped request: sampling, stops, streaming.

Pure functions. A field that would change the answer and that this engine cannot honour is refused,
never ignored; fields about accounts, storage and routing are ignored, and so are those that no
server of this API has, as vLLM does.
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
from .sampling_defaults import SamplingDefaults

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
    # What a grammar would have to constrain.
    "structured_outputs": ({},),
    "structural_tag": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": ([],),
    "guided_grammar": (),
    "guided_decoding": ({},),
    "json_schema": (),
    "regex": (),
    "ebnf": (),
    "grammar": (),
    # Which tokens are drawn.
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "vllm_xargs": ({},),
    "min_new_tokens": (0,),
    "typical_p": (1,),
    "lora_path": (),
    # Where the answer ends.
    "thinking_budget": (),
    "thinking_token_budget": (),
    "stop_regex": ([], ""),
    # What the prompt is.
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "truncate_prompt_tokens": (),
    "prompt_embeds": ([],),
    "input_embeds": ([],),
    "session_params": ({},),
    "web_search_options": (),
    "function_call": ("auto", "none"),
    "verbosity": ("medium",),
    # What the reply holds.
    "skip_special_tokens": (True,),
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_hidden_states": (False,),
    "audio": (),
}


@dataclass(frozen=True)
class AnswerOptions:
    """stop_is_kept: the stop string that ends the answer is part of its text. include_usage: a
    stream ends with a chunk of usage."""

    sampling: SamplingParams
    stops: tuple[str, ...]
    stop_is_kept: bool
    stream: bool
    include_usage: bool


def read_options(
    fields: RequestFields, codec: TextCodec, default_new_tokens: int, defaults: SamplingDefaults
) -> AnswerOptions:
    """defaults: of what the request leaves out. Raises InvalidField."""
    for name, harmless in _WITHOUT_EFFECT.items():
        value = fields.get(name)
        if value is not None and value not in harmless:
            or_harmless = f", or {harmless[0]!r}" if harmless else ""
            raise InvalidField(name, f"is not supported here: leave it out{or_harmless}")
    return AnswerOptions(
        sampling=_sampling(fields, codec, default_new_tokens, defaults),
        stops=_stops(fields),
        stop_is_kept=fields.flag("include_stop_str_in_output") or fields.flag("no_stop_trim"),
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


def _sampling(
    fields: RequestFields, codec: TextCodec, default_new_tokens: int, defaults: SamplingDefaults
) -> SamplingParams:
    new_tokens = fields.integer("max_completion_tokens")
    if new_tokens is None:
        new_tokens = fields.integer("max_tokens")
    temperature, top_p, seed = fields.number("temperature"), fields.number("top_p"), _seed(fields)
    top_k = fields.integer("top_k")
    stop_tokens = fields.items("stop_token_ids")
    if len(stop_tokens) > MAX_STOP_TOKENS:
        raise InvalidField("stop_token_ids", f"may hold at most {MAX_STOP_TOKENS}")
    stops = to_tokens("stop_token_ids", stop_tokens)
    check_vocabulary("stop_token_ids", stops, codec.vocab_size)
    try:
        return asked_sampling(
            codec.vocab_size,
            max_new_tokens=default_new_tokens if new_tokens is None else new_tokens,
            temperature=defaults.temperature if temperature is None else temperature,
            top_k=defaults.top_k if top_k is None else _all_tokens_as_zero(top_k),
            top_p=defaults.top_p if top_p is None else top_p,
            seed=seed,
            stop_token_ids=tuple(stops.tolist()),
            ignore_eos=fields.flag("ignore_eos"),
        )
    except ValueError as error:
        name, _, complaint = str(error).partition(" ")
        raise InvalidField("max_tokens" if name == "max_new_tokens" else name, complaint) from error


def _all_tokens_as_zero(top_k: int) -> int:
    """vLLM's clients write -1 for every token."""
    return 0 if top_k == -1 else top_k


def _seed(fields: RequestFields) -> int:
    """A fresh one where none is given: equal requests are then answered differently."""
    seed = fields.integer("seed")
    return secrets.randbits(62) if seed is None else seed


def _stops(fields: RequestFields) -> tuple[str, ...]:
    stop = fields.get("stop")
    stops = [stop] if isinstance(stop, str) else fields.items("stop")
    return check_stops("stop", stops)
