"""Fields of POST /v1/completions. Pure."""

from .sampling import OF_BOTH, TOP_LOGPROBS
from .shapes import (
    FLAG,
    STRING,
    TOKEN_ID,
    Fields,
    Schema,
    either,
    integer,
    nonnull_array,
    object_of,
)

MAX_PROMPTS = 1024
"""A list is one reply, all of whose choices are held until it ends."""
IDS: Schema = nonnull_array(TOKEN_ID, least=1)
ONE_PROMPT: Schema = either({**STRING, "minLength": 1}, IDS)
OF_COMPLETIONS: Fields = {
    **OF_BOTH,
    "prompt": either(ONE_PROMPT, nonnull_array(ONE_PROMPT, least=1, most=MAX_PROMPTS)),
    "echo": FLAG,
    "logprobs": TOP_LOGPROBS,
    "max_tokens": integer(0),
    "max_completion_tokens": integer(0),
}
"""As of OF_CHATS."""
COMPLETION: Schema = object_of(OF_COMPLETIONS, ["prompt"])
