"""Bodies of POST /tokenize and POST /detokenize. Pure."""

from .chats import RENDERED
from .completions import ONE_PROMPT
from .conversations import MESSAGES
from .sampling import SALT
from .shapes import (
    FLAG,
    NULL,
    TEXT,
    TOKEN_ID,
    Fields,
    Schema,
    either,
    nonnull_array,
    object_of,
)

OF_TOKENIZE: Fields = {"model": TEXT, "return_token_strs": FLAG}
_PROMPT: Schema = either(ONE_PROMPT, nonnull_array(ONE_PROMPT, least=1, most=1))
_OF_PROMPT = object_of({**OF_TOKENIZE, "prompt": _PROMPT, "messages": NULL}, ["prompt"])
_OF_MESSAGES = object_of(
    {**OF_TOKENIZE, **RENDERED, "messages": MESSAGES, "cache_salt": SALT}, ["messages"]
)
TOKENIZE: Schema = either(_OF_PROMPT, _OF_MESSAGES)
OF_DETOKENIZE: Fields = {"model": TEXT, "tokens": nonnull_array(TOKEN_ID)}
DETOKENIZE: Schema = object_of(OF_DETOKENIZE, ["tokens"])
