"""Fields of chats and completions alike: sampling, ends, replies, accounts, routing. Pure."""

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
from tasuki.server.auth.tenant import MAX_SALT
from tasuki.server.request_checks import (
    MAX_CHOICES,
    MAX_STOP_CHARACTERS,
    MAX_STOP_TOKENS,
    MAX_STOPS,
)
from tasuki.server.text.bad_words import MAX_BAD_WORD_CHARACTERS, MAX_BAD_WORDS

from .accounts import ACCOUNTS
from .grammars import FORMATS
from .shapes import (
    ANY,
    FLAG,
    NULL,
    STRING,
    TEXT,
    TOKEN_ID,
    Fields,
    Schema,
    array,
    either,
    integer,
    number,
    object_of,
    or_null,
    text,
)
from .unserved import UNSERVED, unserved

SALT = text(MAX_SALT)
"""Bytes: of letters beyond ASCII fewer are taken."""
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
_STREAM_OPTIONS: Fields = dict.fromkeys(
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
    "stream_options": either(object_of(_STREAM_OPTIONS, others=NULL), NULL),
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
"""Honoured fields are last: they replace the entries of refused ones."""
