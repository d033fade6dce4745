"""Renders messages as token ids by the checkpoint's own jinja template.

Owns the compiled template. Immutable after load; any thread.
Invariants: special tokens come from the template only, never from a message; the result of
`continuation` depends on the new messages alone, so a log of tokens only ever grows and its prefix
stays cached. A conversation is rendered once; its marks cost a bounded number of messages more.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .chat_message import ChatMessage, ChatTemplateError
from .long_text import matches
from .message_ends import message_ends
from .message_places import MessagePlaces, mark_loops
from .special_token_guard import MARK_BEGIN, MARK_END, SpecialTokenGuard, any_of
from .tokenizer import Tokenizer

# Stands for an answer whose text does not matter.
_PROBE = f"{MARK_BEGIN}answer{MARK_END}"


@dataclass(frozen=True)
class RenderedPrompt:
    """marks: token counts at which a message ends and a special token or the end follows,
    ascending."""

    token_ids: list[int]
    marks: tuple[int, ...]


class ChatTemplate:
    def __init__(self, source: str, tokenizer: Tokenizer, variables: dict[str, str]) -> None:
        """source: jinja text; variables: bos_token and its like, as the template names them."""
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise_exception
        try:
            self._template = environment.from_string(source)
            self._marked = environment.from_string(mark_loops(environment.parse(source)))
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat_template does not compile: {error}") from error
        self._variables = variables
        self._tokenizer = tokenizer
        self._added = any_of(tokenizer.added_tokens)
        self._longest = max(map(len, tokenizer.added_tokens), default=1)

    @staticmethod
    def load(model_dir: Path, tokenizer: Tokenizer) -> "ChatTemplate | None":
        """From chat_template.jinja, else tokenizer_config.json; None where neither has a
        template."""
        config: dict[str, Any] = {}
        config_path = model_dir / "tokenizer_config.json"
        if config_path.exists():
            try:
                config = json.loads(config_path.read_text(encoding="utf-8"))
            except ValueError as error:
                raise ChatTemplateError(f"{config_path} is not JSON: {error}") from error
        template_path = model_dir / "chat_template.jinja"
        source = config.get("chat_template")
        if template_path.exists():
            source = template_path.read_text(encoding="utf-8")
        if not isinstance(source, str):
            return None
        return ChatTemplate(source, tokenizer, _special_names(config))

    def prompt(
        self,
        messages: Sequence[ChatMessage],
        *,
        open_answer: bool,
        tools: Sequence[Mapping[str, Any]] = (),
        most: int | None = None,
    ) -> RenderedPrompt:
        """A whole conversation. open_answer: end with the opening of the assistant's turn.

        tools: definitions as OpenAI's clients send them, for the template's `tools` variable. most:
        tokens that are worth counting; more raise TooManyTokens.
        """
        guard = SpecialTokenGuard(messages, tools, self._tokenizer)
        places = MessagePlaces(guard.messages)
        text, ends = places.read(
            self._render(guard.messages, open_answer, guard.tools, self._marked, places.variables())
        )

        def part(count: int) -> str | None:
            try:
                return self._render(guard.messages[:count], False, guard.tools)
            except ChatTemplateError:
                return None  # templates may refuse a part of a conversation, which has no mark

        return self._encode(text, message_ends(guard.messages, text, ends, part), guard, most)

    def continuation(
        self, messages: Sequence[ChatMessage], most: int | None = None
    ) -> RenderedPrompt:
        """The tokens that `messages` add after any closed turn."""
        guard = self._guard(messages)
        closing = self._after_answer([], False)
        text = self._after_answer(guard.messages, False)
        if not text.startswith(closing):
            raise ChatTemplateError(
                "messages: the chat template rewrites earlier turns: send the whole conversation"
            )
        return self._encode(text[len(closing) :], {len(text) - len(closing)}, guard, most)

    def answer_opening(self) -> list[int]:
        """Tokens that open the assistant's turn after a closed one."""
        question = [{"role": "user", "content": "?"}]
        closed, opened = (self._after_answer(question, flag) for flag in (False, True))
        if not opened.startswith(closed):
            raise ChatTemplateError("the chat template has no opening for an answer: append tokens")
        return self._encode(opened[len(closed) :], set(), self._guard([])).token_ids

    def answer_closing(self) -> list[int]:
        """Tokens that stand after an answer's text, the end token that a model samples among
        them."""
        return self._encode(self._after_answer([], False), set(), self._guard([])).token_ids

    def _guard(self, messages: Sequence[ChatMessage]) -> SpecialTokenGuard:
        return SpecialTokenGuard(messages, (), self._tokenizer)

    def _after_answer(self, messages: list[dict[str, Any]], open_answer: bool) -> str:
        """The text that the template writes after an answer's when `messages` follow it."""
        answer = {"role": "assistant", "content": _PROBE}
        text = self._render([{"role": "user", "content": "?"}, answer, *messages], open_answer)
        _, found, after = text.rpartition(_PROBE)
        if not found:
            raise ChatTemplateError("the chat template drops an answer's text: append tokens")
        return after

    def _render(
        self,
        messages: list[dict[str, Any]],
        open_answer: bool,
        tools: Sequence[Any] = (),
        template: jinja2.Template | None = None,
        calls: Mapping[str, Any] = MappingProxyType({}),
    ) -> str:
        """template, calls: the marked template and the functions that it calls; the checkpoint's
        template by default."""
        try:
            return (template or self._template).render(
                messages=messages,
                add_generation_prompt=open_answer,
                # Templates ask whether there are any tools by asking whether there is a list.
                tools=list(tools) or None,
                **self._variables,
                **calls,
            )
        except (jinja2.TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError(f"messages: the chat template refuses them: {error}") from error

    def _encode(
        self, text: str, ends: set[int], guard: SpecialTokenGuard, most: int | None = None
    ) -> RenderedPrompt:
        token_ids: list[int] = []
        marks = []
        position = 0

        def add(plain: str) -> None:
            left = None if most is None else most - len(token_ids)
            token_ids.extend(self._tokenizer.encode(guard.restore(plain), left))

        for special in matches(self._added, text, self._longest):
            add(text[position : special.start()])
            if special.start() in ends:
                marks.append(len(token_ids))
            token_ids.append(self._tokenizer.added_tokens[special.group()])
            position = special.end()
            if position in ends and position == len(text):
                marks.append(len(token_ids))
        if position < len(text):
            add(text[position:])
            if len(text) in ends:
                marks.append(len(token_ids))
        return RenderedPrompt(token_ids, tuple(sorted(set(marks) - {0})))


def _special_names(config: dict[str, Any]) -> dict[str, str]:
    names = {}
    for name in ("bos_token", "eos_token", "pad_token", "unk_token"):
        value = config.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            names[name] = content
    return names


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
