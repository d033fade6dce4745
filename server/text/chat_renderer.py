"""Rendering of clients' text, messages and options as tokens and marks.

ChatRenderer owns the bounds checked before a text is encoded or a template runs. Immutable; any
thread. A long text may take seconds, so callers use the codec's threads. Every method raises
InvalidRequest or PromptTooLong. Invariant: a call's cost is bounded by the model's context,
whatever the client sends.

read_bad_words() returns the texts forbidden in an answer, as sequences of token ids.
placed_budget() returns the longest thought a request allows, and the tokens to end the thought.
effort_of_template() returns the effort of thinking, as a word of the model's own template. APIs
have scales of their own, and their clients send such a word by default. Templates reject words they
do not know. These functions are pure.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .chat_message import ChatMessage, ChatTemplateError
from .text_answer import BEHIND_THINKING, END_OF_THINK, THINK, Thinking
from .text_codec import TextCodec
from .tokenizer import TooManyTokens

MAX_BAD_WORDS = 128
MAX_BAD_WORD_CHARACTERS = 256


def read_bad_words(
    field: str, words: Sequence[object], codec: TextCodec
) -> tuple[tuple[int, ...], ...]:
    """Return the token ids of each word at the start of a text. If the word behind a space begins
    with another token and has as many tokens, return those ids too, as vLLM does. Raises
    InvalidField. Raises InvalidRequest if the checkpoint has no tokenizer."""
    if not words:
        return ()
    if len(words) > MAX_BAD_WORDS:
        raise InvalidField(field, f"may hold at most {MAX_BAD_WORDS} strings")
    tokenizer = codec.require_tokenizer()
    sequences = []
    for word in words:
        text = word.lstrip() if isinstance(word, str) else ""
        if not 0 < len(text) <= MAX_BAD_WORD_CHARACTERS:
            raise InvalidField(
                field, f"must hold strings of 1 to {MAX_BAD_WORD_CHARACTERS} characters"
            )
        first, behind = tokenizer.encode(text), tokenizer.encode(f" {text}")
        sequences.append(tuple(first))
        if behind[0] != first[0] and len(behind) == len(first):
            sequences.append(tuple(behind))
    return tuple(sequences)


_BEFORE_END = "\n"
"""Text between a thought and its closing tag, if no template defines it."""


def placed_budget(
    field: str, most: int | None, thinking: Thinking, codec: TextCodec
) -> ThinkingBudget | None:
    """Return the thinking budget of an answer. Return None if the answer may not think, or `most`
    is None.

    field: the request's field, for errors. most: tokens. Raises InvalidField.
    """
    if most is None or thinking is Thinking.NEVER:
        return None
    tokenizer = codec.tokenizer
    closing, opening = (
        None if tokenizer is None else tokenizer.added_tokens.get(tag)
        for tag in (END_OF_THINK, THINK)
    )
    if tokenizer is None or closing is None or opening is None:
        raise InvalidField(
            field,
            f"needs a tokenizer in which {THINK} and {END_OF_THINK} are tokens: leave it out",
        )
    before = _BEFORE_END if codec.template is None else codec.template.thought_end
    tokens = (*tokenizer.encode(before), closing, *tokenizer.encode(BEHIND_THINKING))
    opened = None if thinking is Thinking.OPENED else opening
    try:
        return ThinkingBudget(most, tokens, closing, opened)
    except ValueError as error:
        raise InvalidField(field, str(error).removeprefix("thinking ")) from error


EFFORT = "reasoning_effort"
"""The template's variable."""

_NEAREST = {
    "minimal": ("low",),
    "high": ("xhigh",),
    "xhigh": ("high",),
    "max": ("xhigh", "high"),
}


# (Most tokens of thought, effort)
_SMALL_BUDGETS = ((1024, "low"), (2048, "medium"))


def effort_of_budget(field: str, tokens: int | None) -> str | None:
    """Return the effort word for a small budget of tokens. A model trained on the word ends its
    thought sooner by itself. Return None for a larger budget or no budget. Raises InvalidField."""
    if tokens is None:
        return None
    if tokens < 1:
        raise InvalidField(field, f"must be at least 1, not {tokens}")
    return next((word for most, word in _SMALL_BUDGETS if tokens <= most), None)


def effort_of_template(codec: TextCodec, field: str, effort: str) -> str:
    """Return the word itself, or the nearest word accepted by the template. A template without a
    variable for effort takes every word. Raises InvalidField."""
    template = codec.require_template()
    for word in (effort, *_NEAREST.get(effort, ())):
        if template.takes({EFFORT: word}):
            return word
    raise InvalidField(field, f"{effort!r:.40} is none that this model's chat template takes")


MAX_MESSAGES = 4096
MAX_TOOLS = 1024

_NO_VARIABLES: Mapping[str, Any] = {}
_MESSAGE_KEYS = len("role" + "content")
_CALLS_KEY = len("tool_calls")
_REASONING_KEYS = len("reasoning" + "reasoning_content")
_CALL_KEYS = len("type" + "function" + "function" + "name" + "arguments")


class ChatRenderer:
    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec

    def text(self, field: str, text: str) -> Tokens:
        """Return the text's tokens, int32 [T]. The name of a special token in it stays text."""
        tokenizer = self._codec.require_tokenizer()
        self._check_characters(field, len(text))
        with self._refusals(field):
            return np.array(tokenizer.encode(text, self._codec.max_tokens), dtype=np.int32)

    def conversation(
        self,
        messages: Sequence[ChatMessage],
        *,
        open_answer: bool,
        salt: bytes,
        tools: Sequence[Mapping[str, Any]] = (),
        variables: Mapping[str, Any] = _NO_VARIABLES,
        breakpoints: Sequence[int] = (),
    ) -> RenderedPrompt:
        """Return the tokens and marks of a whole conversation, as ChatTemplate.prompt does. salt:
        the salt of the prompt in the engine."""
        template = self._codec.require_template()
        if len(tools) > MAX_TOOLS:
            raise InvalidRequest(f"tools has {len(tools)}: send at most {MAX_TOOLS}")
        self._check_messages(messages, sum(map(_characters, tools)) + _characters(variables))
        with self._refusals("messages"):
            return template.prompt(
                messages,
                open_answer=open_answer,
                tools=tools,
                variables=variables,
                salt=salt,
                most=self._codec.max_tokens,
                breakpoints=breakpoints,
            )

    def continuation(self, messages: Sequence[ChatMessage], *, salt: bytes) -> RenderedPrompt:
        """Return the tokens and marks of messages after a closed turn, as ChatTemplate.continuation
        does. salt: the session's."""
        template = self._codec.require_template()
        self._check_messages(messages, 0)
        with self._refusals("messages"):
            return template.continuation(messages, salt=salt, most=self._codec.max_tokens)

    def without_closing(self, rendered: RenderedPrompt) -> RenderedPrompt:
        """Return the prompt without its closing, as ChatTemplate.without_closing does."""
        with self._refusals("messages"):
            return self._codec.require_template().without_closing(rendered)

    def next_turn(
        self,
        messages: Sequence[ChatMessage],
        *,
        salt: bytes,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> RenderedPrompt:
        """Return messages after a closed turn and the opening of an answer, as
        ChatTemplate.next_turn does."""
        template = self._codec.require_template()
        self._check_messages(messages, _characters(variables))
        with self._refusals("messages"):
            return template.next_turn(
                messages, variables=variables, salt=salt, most=self._codec.max_tokens
            )

    def answer_opening(self) -> Tokens:
        with self._refusals("messages"):
            return self._codec.require_template().answer_opening()

    def answer_closing(self) -> Tokens:
        with self._refusals("messages"):
            return self._codec.require_template().answer_closing()

    def _check_messages(self, messages: Sequence[ChatMessage], more_characters: int) -> None:
        if len(messages) > MAX_MESSAGES:
            raise PromptTooLong(
                f"messages has {len(messages)}: send at most {MAX_MESSAGES}, or join some",
                "messages",
            )
        characters = sum(map(_message_characters, messages))
        self._check_characters("messages", characters + more_characters)

    def _check_characters(self, field: str, characters: int) -> None:
        most = self._codec.most_characters
        if characters > most:
            raise PromptTooLong(
                f"{field} has {characters} characters, and no text of over {most} fits the model's "
                f"context of {self._codec.max_tokens} tokens: send less",
                field,
            )

    @contextmanager
    def _refusals(self, field: str) -> Iterator[None]:
        try:
            yield
        except ChatTemplateError as error:
            raise InvalidRequest(str(error)) from error
        except TooManyTokens as error:
            raise PromptTooLong(
                f"{field} has over {self._codec.max_tokens} tokens, which is the model's context "
                "with the answer: send less",
                field,
            ) from error


def _message_characters(message: ChatMessage) -> int:
    """Return the length of all strings given to a template for the message, keys included."""
    characters = _MESSAGE_KEYS + len(message.role) + len(message.content)
    if message.tool_calls:
        characters += _CALLS_KEY
    if message.reasoning is not None:
        characters += _REASONING_KEYS + len(message.reasoning)
    for call in message.tool_calls:
        characters += _CALL_KEYS + len(call.name) + _characters(call.arguments)
    return characters


def _characters(value: Any) -> int:
    """Return the length of all strings in a JSON value, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return 0
