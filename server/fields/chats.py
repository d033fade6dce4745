"""Fields of POST /v1/chat/completions. Pure."""

from .conversations import CONTENT, MESSAGES, TOOL_CHOICE, TOOLS
from .sampling import OF_BOTH, REFUSED_OF_CHATS, TOP_LOGPROBS
from .shapes import (
    FLAG,
    NOTHING,
    NULL,
    TEXT,
    Fields,
    Schema,
    integer,
    object_of,
    one_of,
    or_null,
)

TAKEN_VARIABLES = ("messages", "tools", "add_generation_prompt", "chat_template", "tokenize")
"""Of a template: a rendering sets them itself."""
VARIABLES: Fields = {
    "chat_template_kwargs": or_null(object_of(dict.fromkeys(TAKEN_VARIABLES, NOTHING))),
    "enable_thinking": FLAG,
    "preserve_thinking": FLAG,
}
_THINKING: Schema = object_of(
    {
        "type": one_of([None, "auto", "adaptive", "enabled", "disabled"]),
        "budget_tokens": integer(1),
        "clear_thinking": FLAG,
    },
    others=NULL,
)
_PREDICTION: Schema = object_of(
    {"type": one_of(["content"]), "content": CONTENT}, ["type", "content"]
)
RENDERED: Fields = {
    **VARIABLES,
    "add_generation_prompt": FLAG,
    "continue_final_message": FLAG,
    "reasoning": or_null(object_of({"effort": TEXT, "enabled": FLAG}, others=NULL)),
    "reasoning_effort": TEXT,
    "thinking": or_null(_THINKING),
    "tools": TOOLS,
}
"""What a prompt is made of beside its messages."""
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
"""That are honoured, refused by their names, or about what no answer depends on. Any other is
unknown: clients misspell them."""
CHAT: Schema = object_of(OF_CHATS, ["messages"])
