"""Renders clients' text and messages as tokens and marks.

Owns the bounds that hold before a text is encoded or a template runs. Immutable; any thread, but a
long text may take seconds, so callers use the codec's threads. Every method raises InvalidRequest
or PromptTooLong. Invariant: a call's cost is bounded by the model's context, whatever the client
sends.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.server.errors import InvalidRequest, PromptTooLong
from tasuki.server.text.rendering.chat_template import RenderedPrompt

from .chat_message import ChatMessage, ChatTemplateError
from .text_codec import TextCodec
from .tokenizer import TooManyTokens

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
        """The text's tokens, int32 [T]; the name of a special token in it stays text."""
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
        """A whole conversation, as ChatTemplate.prompt. salt: as of the prompt in the engine."""
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
        """Messages after a closed turn, as ChatTemplate.continuation. salt: as of the session."""
        template = self._codec.require_template()
        self._check_messages(messages, 0)
        with self._refusals("messages"):
            return template.continuation(messages, salt=salt, most=self._codec.max_tokens)

    def without_closing(self, rendered: RenderedPrompt) -> RenderedPrompt:
        """As ChatTemplate.without_closing."""
        with self._refusals("messages"):
            return self._codec.require_template().without_closing(rendered)

    def next_turn(
        self,
        messages: Sequence[ChatMessage],
        *,
        salt: bytes,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> RenderedPrompt:
        """Messages after a closed turn and the opening of an answer, as ChatTemplate.next_turn."""
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
    """Of all strings that a template is given of it, keys included."""
    characters = _MESSAGE_KEYS + len(message.role) + len(message.content)
    if message.tool_calls:
        characters += _CALLS_KEY
    if message.reasoning is not None:
        characters += _REASONING_KEYS + len(message.reasoning)
    for call in message.tool_calls:
        characters += _CALL_KEYS + len(call.name) + _characters(call.arguments)
    return characters


def _characters(value: Any) -> int:
    """Of all strings in a JSON value, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return 0
