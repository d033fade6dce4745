"""Helpers for JSON Schemas, and the request fields common to several APIs: sampling, stops,
grammars, accounts. Pure.

Schemas are JSON Schemas in draft 2020-12. A null field counts as absent, so the schema of every
optional field accepts null.

Account fields have the bounds of check_account_fields() in server/openai/request_fields.py. Grammar
fields have the schemas read by server/openai/sampling.py. Rejected fields are listed with their
harmless values: those with the same effect as no field. Null is harmless in each of them.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from tasuki.model.ops.sampling.params import (
    MAX_ALLOWED_TOKENS,
    MAX_BIAS,
    MAX_BIASES,
    MAX_PENALTY,
    MAX_REPETITION_PENALTY,
    MAX_TEMPERATURE,
    MAX_TOP_LOGPROBS,
    MIN_REPETITION_PENALTY,
)
from tasuki.model.ops.sampling.thinking_budget import MAX_THINKING_TOKENS
from tasuki.server.auth.tenants import MAX_SALT
from tasuki.server.request_checks import (
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
)
from tasuki.server.text.chat_renderer import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS
from tasuki.server.text.grammars.asked_grammar import MAX_TEXTS

Schema: TypeAlias = Mapping[str, Any]
Fields: TypeAlias = Mapping[str, Schema]
"""JSON Schemas of an object's fields, by field name."""

NULL: Schema = {"type": "null"}
ANY: Schema = {}
"""Schema of any value, for fields without effect on an answer."""
NOTHING: Schema = {"not": {}}
"""Schema of no value at all, not even null."""
TEXT: Schema = {"type": ["string", "null"]}
FLAG: Schema = {"type": ["boolean", "null"]}
OBJECT: Schema = {"type": ["object", "null"]}
STRING: Schema = {"type": "string"}
TOKEN_ID: Schema = {"type": "integer", "minimum": 0, "maximum": 2**31 - 1}


def text(most: int) -> Schema:
    """Return the schema of a text or null. most: largest length in characters."""
    return {**TEXT, "maxLength": most}


def integer(least: int = -(2**63), most: int = 2**63 - 1) -> Schema:
    return {"type": ["integer", "null"], "minimum": least, "maximum": most}


def number(least: float | None = None, most: float | None = None) -> Schema:
    bounds = {"minimum": least, "maximum": most}
    given = {name: bound for name, bound in bounds.items() if bound is not None}
    return {"type": ["number", "null"], **given}


def array(items: Schema = ANY, *, least: int = 0, most: int | None = None) -> Schema:
    """Return the schema of a list or null. items: schema of each item. least, most: bounds of the
    number of items."""
    return {**nonnull_array(items, least=least, most=most), "type": ["array", "null"]}


def nonnull_array(items: Schema = ANY, *, least: int = 0, most: int | None = None) -> Schema:
    bounds = {} if most is None else {"maxItems": most}
    least_items = {"minItems": least} if least else {}
    of_items = {"items": items} if items else {}
    return {"type": "array", **of_items, **least_items, **bounds}


def one_of(values: Iterable[Any]) -> Schema:
    """Return the schema of a field with one of these values; null only if listed."""
    return {"enum": list(values)}


def either(*schemas: Schema) -> Schema:
    return {"anyOf": list(schemas)}


def object_of(
    fields: Fields, required: Sequence[str] = (), others: Schema | bool | None = None
) -> Schema:
    """Return the schema of an object with these fields. required: names of required fields. others:
    schema for fields of other names; None: any value. REQUIRES: the schema of a required field
    itself accepts or rejects null."""
    shape: dict[str, Any] = {"type": "object", "properties": dict(fields)}
    if required:
        shape["required"] = list(required)
    if others is not None:
        shape["additionalProperties"] = others
    return shape


def or_null(schema: Schema) -> Schema:
    return either(schema, NULL)


# OpenAI documents the bounds of `metadata` and `safety_identifier`. Its service refuses a longer
# `user` and a longer `prompt_cache_key` too.
MAX_ID = 64
MAX_PAIRS = 16
MAX_NAME = 64
MAX_VALUE = 512
"""Limits of account fields, all in characters except MAX_PAIRS. MAX_PAIRS: largest number of pairs
of name and value in `metadata`."""

IDS = ("user", "safety_identifier", "prompt_cache_key")
ACCOUNTS: Fields = {
    **{name: text(MAX_ID) for name in IDS},
    "metadata": or_null(
        {
            "type": "object",
            "maxProperties": MAX_PAIRS,
            "propertyNames": {"maxLength": MAX_NAME},
            "additionalProperties": {**STRING, "maxLength": MAX_VALUE},
        }
    ),
}


UNSERVED: Mapping[str, tuple[Any, ...]] = {
    "n": (1,),
    "best_of": (1,),
    "echo": (False,),
    "suffix": ("",),
    "functions": ([],),
    "modalities": (["text"],),
    "use_beam_search": (False,),
    # Other forms of an answer's constraint (sampling.py).
    "guided_decoding": ({},),
    "guided_whitespace_pattern": (),
    "grammar": (),
    # Choice of the sampled tokens.
    "logits_processors": ([],),
    "custom_logit_processor": (),
    "vllm_xargs": ({},),
    "min_new_tokens": (0,),
    "typical_p": (1,),
    "lora_path": (),
    "watermarking": (False,),
    "custom_params": ({},),
    # End of the answer.
    "repetition_detection": (),
    "stop_regex": ([], ""),
    # Content of the prompt.
    "chat_template": (),
    "continue_final_message": (False,),
    "documents": ([],),
    "truncate_prompt_tokens": (),
    "prompt_embeds": ([],),
    "input_embeds": ([],),
    "input_ids": (),
    "task": (),
    "session_params": ({},),
    "web_search_options": (),
    "function_call": ("auto", "none"),
    "verbosity": ("medium",),
    # Content of the reply.
    "prompt_logprobs": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "return_hidden_states": (False,),
    "return_prompt_text": (False,),
    "return_prompt_token_ids": (False,),
    "return_meta_info": (False,),
    "return_cached_tokens_details": (False,),
    "return_routed_experts": (False,),
    "logprob_token_ids": (),
    "include_reasoning": (True,),
    "separate_reasoning": (True,),
    "stream_reasoning": (True,),
    "audio": (),
}
"""Fields rejected in chats and completions, with their harmless values: those with the same effect
as no field. One of the two APIs may still support a field listed here."""


def unserved(table: Mapping[str, Sequence[Any]]) -> Fields:
    """Return the schemas of rejected fields: each accepts only null and its harmless values. table:
    harmless values by field name."""
    return {name: one_of([None, *harmless]) for name, harmless in table.items()}


SCHEMA: Schema = either({"type": ["object", "string"]}, one_of([True]))
"""Schema of a field with a JSON Schema, as an object or as JSON text."""
_SOURCE: Schema = {**STRING, "minLength": 1}
_TAG_TYPE: Schema = one_of([None, "structural_tag"])
_NONEMPTY: Schema = nonnull_array({**STRING, "minLength": 1}, least=1, most=MAX_TEXTS)
_CHOICES: Schema = either(_NONEMPTY, nonnull_array(most=0), NULL)
_WITH_SCHEMA: Schema = object_of({"schema": SCHEMA}, ["schema"])


def _of_type(kind: str, **fields: Schema) -> Schema:
    return object_of({"type": one_of([kind]), **fields}, ["type", *fields])


_TAGS: Fields = {
    "structures": nonnull_array({"type": "object"}, least=1),
    "triggers": nonnull_array(_SOURCE, least=1),
}
_TAG: Schema = either(
    STRING,
    object_of({"type": _TAG_TYPE, "format": {"type": "object"}}, ["format"]),
    object_of({"type": _TAG_TYPE, **_TAGS}, list(_TAGS)),
)
FREE_TEXT: Schema = _of_type("text")
RESPONSE_FORMAT: Schema = either(
    NULL,
    FREE_TEXT,
    object_of({"type": one_of(["json_object"]), "schema": or_null(SCHEMA)}, ["type"]),
    _of_type("json_schema", json_schema=_WITH_SCHEMA),
    _of_type("json_schema", schema=SCHEMA),
    _of_type("structural_tag", format={"type": "object"}),
    _of_type("structural_tag", **_TAGS),
)
TEXT_FORMAT: Schema = either(
    NULL,
    FREE_TEXT,
    object_of({"type": one_of(["json_object"]), "schema": or_null(SCHEMA)}, ["type"]),
    _of_type("json_schema", schema=SCHEMA),
)
_STRUCTURED: Fields = {
    "json": or_null(SCHEMA),
    "regex": or_null(_SOURCE),
    "choice": or_null(_NONEMPTY),
    "grammar": or_null(_SOURCE),
    "structural_tag": or_null(_TAG),
    "json_object": one_of([None, True, False]),
}
FORMATS: Fields = {
    "response_format": RESPONSE_FORMAT,
    "structured_outputs": or_null(object_of(_STRUCTURED, others=one_of([None, False]))),
    "guided_json": or_null(SCHEMA),
    "guided_regex": or_null(_SOURCE),
    "guided_choice": _CHOICES,
    "guided_grammar": or_null(_SOURCE),
    "json_schema": or_null(SCHEMA),
    "regex": or_null(_SOURCE),
    "ebnf": or_null(_SOURCE),
    "structural_tag": or_null(_TAG),
    "guided_decoding_backend": ANY,
}
"""Request fields with a grammar for the answer. A request may give only one of them."""


SALT = text(MAX_SALT)
"""Schema of `cache_salt`. Its limit counts bytes, so fewer characters fit if some are not ASCII."""
PRIORITY = integer(-(2**31), 2**31 - 1)
TOP_LOGPROBS = integer(0, MAX_TOP_LOGPROBS)
STOP_TEXT: Schema = {**STRING, "minLength": 1, "maxLength": MAX_STOP_CHARACTERS}
STOP_TEXTS = array(STOP_TEXT, most=MAX_STOPS)
DRAWS: Fields = {
    "temperature": number(0, MAX_TEMPERATURE),
    "top_p": {**number(None, 1), "exclusiveMinimum": 0},
    "top_k": integer(-1),
    "seed": integer(),
}
MIN_P = number(0, 1)
REPETITION_PENALTY = number(MIN_REPETITION_PENALTY, MAX_REPETITION_PENALTY)
PENALTIES: Fields = {
    "presence_penalty": number(-MAX_PENALTY, MAX_PENALTY),
    "frequency_penalty": number(-MAX_PENALTY, MAX_PENALTY),
}
STOP_TOKENS: Fields = {
    "stop_token_ids": array(TOKEN_ID, most=MAX_STOP_TOKENS),
    "ignore_eos": FLAG,
}
BUDGETS: Fields = dict.fromkeys(
    ("thinking_token_budget", "thinking_budget"), integer(-1, MAX_THINKING_TOKENS)
)
_BAD_WORD: Schema = {**STRING, "pattern": r"\S", "maxLength": MAX_BAD_WORD_CHARACTERS}
_BIASES: Schema = {
    "type": "object",
    "propertyNames": {"pattern": "^[0-9]{1,10}$"},
    "additionalProperties": {"type": "number", "minimum": -MAX_BIAS, "maximum": MAX_BIAS},
    "maxProperties": MAX_BIASES,
}
# include_obfuscation is about padding to hide lengths; no chunk here has padding.
STREAM_OPTIONS: Fields = dict.fromkeys(
    ("include_usage", "continuous_usage_stats", "include_obfuscation"), FLAG
)
_HONOURED: Fields = {
    "model": TEXT,
    **DRAWS,
    **PENALTIES,
    **STOP_TOKENS,
    "min_p": MIN_P,
    "repetition_penalty": REPETITION_PENALTY,
    "logit_bias": or_null(_BIASES),
    "min_tokens": integer(0),
    **BUDGETS,
    "bad_words": array(_BAD_WORD, most=MAX_BAD_WORDS),
    "allowed_token_ids": array(TOKEN_ID, least=1, most=MAX_ALLOWED_TOKENS),
    "stop": either(STOP_TEXT, STOP_TEXTS),
    "include_stop_str_in_output": FLAG,
    "no_stop_trim": FLAG,
    "skip_special_tokens": FLAG,
    "stream": FLAG,
    "stream_options": either(object_of(STREAM_OPTIONS, others=NULL), NULL),
    "n": integer(1, MAX_CHOICES),
    "best_of": integer(1, MAX_CHOICES),
    "prompt_logprobs": TOP_LOGPROBS,
    "return_token_ids": FLAG,
    "return_tokens_as_token_ids": FLAG,
    "cache_salt": SALT,
    "priority": PRIORITY,
}
_IGNORED: Fields = dict.fromkeys(
    (
        *("add_special_tokens", "bootstrap_host", "bootstrap_port", "bootstrap_room"),
        *("custom_labels", "data_parallel_rank", "disagg_prefill_dp_rank", "ec_transfer_params"),
        *("extra_key", "images_config", "kv_transfer_params", "length_penalty"),
        *("max_dynamic_patch", "media_io_kwargs", "min_dynamic_patch", "mm_processor_kwargs"),
        *("ngram_corpus_id", "prompt_cache_options", "prompt_cache_retention", "request_id"),
        *("return_mm_kwargs", "return_token_offsets", "rid", "routed_dp_rank"),
        *("routed_experts_prompt_start", "routed_experts_start_len", "service_tier"),
        *("session_id", "spaces_between_special_tokens", "store", "stream_interval"),
        *("truncation_side", "use_audio_in_video"),
    ),
    ANY,
)
_OF_CHATS_ALONE = frozenset(
    {
        *("chat_template", "continue_final_message", "documents", "function_call", "functions"),
        *("include_reasoning", "separate_reasoning", "stream_reasoning", "task", "verbosity"),
        "web_search_options",
    }
)
REFUSED_OF_CHATS: Fields = unserved(
    {name: values for name, values in UNSERVED.items() if name in _OF_CHATS_ALONE}
)
OF_BOTH: Fields = {
    **_IGNORED,
    **unserved({name: values for name, values in UNSERVED.items() if name not in _OF_CHATS_ALONE}),
    **FORMATS,
    **ACCOUNTS,
    **_HONOURED,
}
"""Fields common to chats and completions. Supported fields are listed last, so they replace entries
of rejected fields."""
