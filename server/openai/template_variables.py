"""The variables of the chat template that a request sets: vLLM's and SGLang's
`chat_template_kwargs`, and the fields that stand for one of them.

Pure functions. Which variables there are, and which values they take, is the template's: a value
that it refuses is refused with its words, one that it does not ask for changes no prompt.
"""

from typing import Any

from tasuki.server.errors import InvalidField
from tasuki.server.fields.chats import TAKEN_VARIABLES
from tasuki.server.replies.reasoning_effort import effort_of_budget

from .request_fields import RequestFields

_FLAGS = ("enable_thinking", "preserve_thinking")
_EFFORT = "reasoning_effort"
_THINKING_TYPES = {None: None, "auto": None, "adaptive": None, "enabled": True, "disabled": False}
NO_EFFORT = "none"


def read_template_variables(fields: RequestFields) -> dict[str, Any]:
    """By name. What `chat_template_kwargs` holds counts before a field of that name."""
    variables = _of_thinking(fields)
    for name in _FLAGS:
        if fields.get(name) is not None:
            variables[name] = fields.flag(name)
    of_reasoning = _reasoning(fields, variables)
    effort = fields.text(_EFFORT)
    if effort is None:
        effort = of_reasoning
    if effort == NO_EFFORT:
        variables.setdefault("enable_thinking", False)
    elif effort is not None:
        variables[_EFFORT] = effort
    given = fields.items_by_name("chat_template_kwargs")
    for name in TAKEN_VARIABLES:
        if name in given:
            raise InvalidField(f"chat_template_kwargs.{name}", "is set by the request itself")
    return {**variables, **given}


def _of_thinking(fields: RequestFields) -> dict[str, Any]:
    """What the object of DeepSeek's and GLM's APIs, and of Anthropic's, stands for. Raises
    InvalidField."""
    thinking = fields.fields("thinking")
    for name, value in fields.items_by_name("thinking").items():
        if name not in ("type", "budget_tokens", "clear_thinking") and value is not None:
            raise InvalidField(f"thinking.{name:.80}", "is not supported here: leave it out")
    kind = thinking.text("type")
    if kind not in _THINKING_TYPES:
        raise InvalidField("thinking.type", "must be enabled, disabled or auto")
    cleared = thinking.get("clear_thinking")
    variables = {
        "enable_thinking": _THINKING_TYPES[kind],
        "preserve_thinking": None if cleared is None else not thinking.flag("clear_thinking"),
        _EFFORT: effort_of_budget("thinking.budget_tokens", thinking.integer("budget_tokens")),
    }
    return {name: value for name, value in variables.items() if value is not None}


def _reasoning(fields: RequestFields, variables: dict[str, Any]) -> str | None:
    """SGLang's object for the same: its effort; `enabled` goes to the variables. Raises
    InvalidField."""
    reasoning = fields.fields("reasoning")
    for name, value in fields.items_by_name("reasoning").items():
        if name not in ("effort", "enabled") and value is not None:
            raise InvalidField(f"reasoning.{name:.80}", "is not supported here: leave it out")
    if reasoning.get("enabled") is not None:
        variables.setdefault("enable_thinking", reasoning.flag("enabled"))
    return reasoning.text("effort")
