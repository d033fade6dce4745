"""Schemas of the request fields of POST /v1/chat/completions, /v1/completions, /tokenize and
/detokenize. Pure.

server/openai/messages.py reads `messages`, `tools` and `tool_choice` with these schemas.
"""

from tasuki.server.text.chat_renderer import MAX_MESSAGES, MAX_TOOLS

from .common_fields import (
    FLAG,
    NOTHING,
    NULL,
    OBJECT,
    OF_BOTH,
    REFUSED_OF_CHATS,
    SALT,
    STRING,
    TEXT,
    TOKEN_ID,
    TOP_LOGPROBS,
    Fields,
    Schema,
    array,
    either,
    integer,
    nonnull_array,
    object_of,
    one_of,
    or_null,
)
from .picture_fields import PICTURE_OF_CHATS, VIDEO

_TEXT_PART: Schema = either(
    STRING,
    object_of(
        {"type": one_of(["text", "input_text", "output_text"]), "text": STRING}, ["type", "text"]
    ),
    object_of({"type": one_of(["refusal"]), "refusal": STRING}, ["type", "refusal"]),
)
CONTENT: Schema = either(STRING, nonnull_array(_TEXT_PART))
_SHOWN: Schema = either(STRING, nonnull_array(either(_TEXT_PART, PICTURE_OF_CHATS, VIDEO)))
_NO_CALLS: Schema = array(most=0)
_CALL: Schema = object_of(
    {
        "function": object_of(
            {"name": STRING, "arguments": {"type": ["string", "object", "null"]}}, ["name"]
        )
    },
    ["function"],
)
_ASKED: Schema = object_of(
    {"role": one_of(["system", "developer"]), "content": CONTENT, "tool_calls": _NO_CALLS},
    ["role", "content"],
)
_SAID: Schema = object_of(
    {"role": one_of(["user"]), "content": _SHOWN, "tool_calls": _NO_CALLS}, ["role", "content"]
)
_ANSWERED: Schema = object_of(
    {
        "role": one_of(["assistant"]),
        "content": either(CONTENT, NULL),
        "reasoning_content": TEXT,
        "reasoning": TEXT,
        "tool_calls": array(_CALL),
    },
    ["role"],
)
_RETURNED: Schema = object_of(
    {"role": one_of(["tool"]), "content": either(_SHOWN, NULL), "tool_calls": _NO_CALLS}, ["role"]
)
MESSAGES: Schema = nonnull_array(
    either(_ASKED, _SAID, _ANSWERED, _RETURNED), least=1, most=MAX_MESSAGES
)
_FUNCTION: Schema = object_of(
    {"name": STRING, "description": TEXT, "parameters": OBJECT, "strict": FLAG}, ["name"]
)
TOOLS: Schema = array(
    object_of({"type": one_of([None, "function"]), "function": _FUNCTION}, ["function"]),
    most=MAX_TOOLS,
)
_NAMED: Schema = object_of(
    {"type": one_of(["function"]), "function": object_of({"name": STRING}, ["name"])},
    ["type", "function"],
)
MODES: Schema = one_of(["auto", "required"])
TOOL_CHOICE: Schema = either(
    one_of([None, "auto", "none", "required"]),
    _NAMED,
    object_of(
        {
            "type": one_of(["allowed_tools"]),
            "allowed_tools": object_of(
                {"mode": MODES, "tools": nonnull_array(_NAMED, least=1)}, ["mode", "tools"]
            ),
        },
        ["type", "allowed_tools"],
    ),
)


TAKEN_VARIABLES = ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize")
"""Variables of a chat template set by every rendering; a request cannot set them."""
VARIABLES: Fields = {
    "chat_template_kwargs": or_null(object_of(dict.fromkeys(TAKEN_VARIABLES, NOTHING))),
    "enable_thinking": FLAG,
    "preserve_thinking": FLAG,
}
THINKING_TYPES = {None: None, "auto": None, "adaptive": None, "enabled": True, "disabled": False}
"""Switch for thinking by the value of `thinking.type`: True is on, False is off, None is the
template's default."""
THINKING: Fields = {
    "type": one_of(THINKING_TYPES),
    "budget_tokens": integer(1),
    "clear_thinking": FLAG,
}
REASONING: Fields = {"effort": TEXT, "enabled": FLAG}
_PREDICTION: Schema = object_of(
    {"type": one_of(["content"]), "content": CONTENT}, ["type", "content"]
)
RENDERED: Fields = {
    **VARIABLES,
    "add_generation_prompt": FLAG,
    "continue_final_message": FLAG,
    "reasoning": or_null(object_of(REASONING, others=NULL)),
    "reasoning_effort": TEXT,
    "thinking": or_null(object_of(THINKING, others=NULL)),
    "tools": TOOLS,
}
"""Request fields of a chat's prompt, besides `messages`."""
OF_CHATS: Fields = {
    **OF_BOTH,
    **REFUSED_OF_CHATS,
    **RENDERED,
    "messages": MESSAGES,
    "tool_choice": TOOL_CHOICE,
    "parallel_tool_calls": FLAG,
    "include_reasoning": FLAG,
    "prediction": or_null(_PREDICTION),
    "logprobs": FLAG,
    "top_logprobs": TOP_LOGPROBS,
    "max_tokens": integer(1),
    "max_completion_tokens": integer(1),
}
"""The known fields of a chat request: supported, rejected by name, or without effect on an answer.
Any other field is unknown, often a misspelling."""
CHAT: Schema = object_of(OF_CHATS, ["messages"])


MAX_PROMPTS = 1024
"""Largest number of prompts, and of choices, in a completion request. The request has one reply,
and all its choices are held in memory until the reply ends."""
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
"""The known fields of a completion request: supported, rejected by name, or without effect on an
answer."""
COMPLETION: Schema = object_of(OF_COMPLETIONS, ["prompt"])


OF_TOKENIZE: Fields = {"model": TEXT, "return_token_strs": FLAG}
_PROMPT: Schema = either(ONE_PROMPT, nonnull_array(ONE_PROMPT, least=1, most=1))
_OF_PROMPT = object_of({**OF_TOKENIZE, "prompt": _PROMPT, "messages": NULL}, ["prompt"])
_OF_MESSAGES = object_of(
    {**OF_TOKENIZE, **RENDERED, "messages": MESSAGES, "cache_salt": SALT}, ["messages"]
)
TOKENIZE: Schema = either(_OF_PROMPT, _OF_MESSAGES)
PAUSE_MODES = ("abort", "wait", "retract", "keep", "in_place")
OF_UPDATE: Fields = {
    "model": TEXT,
    "model_path": STRING,
    "load_format": TEXT,
    "weight_version": TEXT,
    "mode": or_null(one_of(PAUSE_MODES)),
    **dict.fromkeys(
        ("abort_all_requests", "keep_pause", "flush_cache", "torch_empty_cache", "is_async"), FLAG
    ),
}
UPDATE: Schema = object_of(OF_UPDATE, ["model_path"])
PAUSE: Schema = object_of({"model": TEXT, "mode": or_null(one_of(PAUSE_MODES))})
OF_DETOKENIZE: Fields = {"model": TEXT, "tokens": nonnull_array(TOKEN_ID)}
DETOKENIZE: Schema = object_of(OF_DETOKENIZE, ["tokens"])
