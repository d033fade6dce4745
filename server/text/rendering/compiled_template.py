"""A checkpoint's jinja template, compiled to run in a sandbox.

Owns the compiled template and the copy of it that marks where messages end. Immutable; any thread.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import BuiltinMethodType
from typing import Any, NoReturn

import jinja2
from jinja2.runtime import Context, LoopContext
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from tasuki.server.text.chat_message import ChatTemplateError

from .special_token_guard import substituted
from .template_marks import (
    ITEM_MARK,
    LONGEST_MARK,
    MARK,
    MessagePlaces,
    item_mark,
    mark_template,
    message_places,
)

_DICT_ATTRIBUTES = frozenset(dir(dict))
# Those that the base wraps are left to it.
_STRING_METHODS = frozenset(
    name for name in dir(str) if not name.startswith("_") and not name.startswith("format")
)
# What compiled templates add to each call, for callables that ask for it.
_SCOPES = frozenset({"_loop_vars", "_block_vars"})
_NO_VARIABLES: Mapping[str, Any] = {}
# What a template raises by itself, or comes to by a value that it did not expect.
_REFUSALS = (
    jinja2.TemplateError,
    TypeError,
    ValueError,
    AttributeError,
    LookupError,
    ArithmeticError,
)
_LOOP_ATTRIBUTES = frozenset(name for name in dir(LoopContext) if not name.startswith("_"))


class CompiledTemplate:
    def __init__(self, source: str, variables: Mapping[str, str]) -> None:
        """source: jinja text; variables: bos_token and its like, as the template names them. Raises
        ChatTemplateError."""
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.filters[ITEM_MARK] = item_mark
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._plain = environment.from_string(source)
            self._marking = environment.from_string(mark_template(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat_template does not compile: {error}") from error
        self._variables = dict(variables)

    def text(
        self,
        messages: Sequence[Any],
        open_answer: bool,
        tools: Sequence[Any] = (),
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> str:
        """variables: of this request, by name. Raises ChatTemplateError."""
        return self._run(self._plain, messages, open_answer, tools, variables)

    def text_and_places(
        self,
        messages: Sequence[Any],
        open_answer: bool,
        tools: Sequence[Any],
        variables: Mapping[str, Any],
    ) -> tuple[str, MessagePlaces]:
        """The same text, and where its messages end. REQUIRES: no string in messages, tools and
        variables holds a mark. Raises ChatTemplateError."""
        marked = self._run(self._marking, messages, open_answer, tools, variables)
        places = message_places(marked, messages)
        text = substituted(MARK, lambda _: "", marked, LONGEST_MARK)
        return text, places if open_answer else replace(places, closed=len(text))

    def _run(
        self,
        template: jinja2.Template,
        messages: Sequence[Any],
        open_answer: bool,
        tools: Sequence[Any],
        variables: Mapping[str, Any],
    ) -> str:
        given = {
            **variables,
            "messages": messages,
            "add_generation_prompt": open_answer,
            # Templates ask whether there are any tools by asking whether there is a list.
            "tools": list(tools) or None,
            **self._variables,
        }
        try:
            return template.render(given)
        except _REFUSALS as error:
            raise ChatTemplateError(f"messages: the chat template refuses them: {error}") from error


class _Sandbox(ImmutableSandboxedEnvironment):
    """Answers at once what its base answers after long checks, where templates ask most: fields of
    messages, loops and namespaces, and methods of strings."""

    def getattr(self, obj: Any, attribute: str) -> Any:
        kind = type(obj)
        if kind is dict and attribute not in _DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is LoopContext and attribute in _LOOP_ATTRIBUTES) or (
            kind is str and attribute in _STRING_METHODS
        ):
            return getattr(obj, attribute)
        return super().getattr(obj, attribute)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if type(obj) is Namespace:
            return not attr.startswith("_")
        return super().is_safe_attribute(obj, attr, value)

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        of_string = type(__obj) is BuiltinMethodType and type(__obj.__self__) is str
        if of_string and kwargs.keys() <= _SCOPES:
            return __obj(*args)
        return super().call(__context, __obj, *args, **kwargs)


def _to_json(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """The arguments that checkpoints' templates may give it."""
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)
