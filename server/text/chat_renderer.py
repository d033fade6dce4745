"""Rendering of clients' text, messages and options as token ids and marks (token counts at message
ends).

ChatRenderer checks limits before a text is encoded or a template runs. Immutable; any thread. A
long text may take seconds, so callers use the codec's threads. Every method raises InvalidRequest
or PromptTooLong. Invariant: a call's cost is bounded by the model's context, for any input of a
client.

read_bad_words() returns the texts forbidden in an answer, as sequences of token ids.
placed_budget() returns the request's largest number of thinking tokens, and the tokens to end the
thinking. effort_of_template() translates an effort word to a word of the model's template. APIs
have effort words of their own, and their clients send one by default. Templates reject words they
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
    """Return the token ids of each forbidden word at the start of a text. Also return its ids after
    a space, as vLLM does, if they begin with another token and are as many. Leading spaces of a
    word are removed. field: the request's field, for errors. Raises InvalidField for too many
    words, or an empty or too long one. Raises InvalidRequest if the checkpoint has no tokenizer."""
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
"""Text between the model's thinking and its closing tag, for a checkpoint without a template."""


def placed_budget(
    field: str, most: int | None, thinking: Thinking, codec: TextCodec
) -> ThinkingBudget | None:
    """Return the thinking budget of an answer for the engine. Return None if the answer may not
    think, or `most` is None.

    field: the request's field, for errors. most: largest number of thinking tokens. thinking:
    thinking state at the end of the prompt. Raises InvalidField, also if the thinking tags are no
    tokens of the checkpoint.
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
"""Name of the template variable for the effort of thinking."""

_NEAREST = {
    "minimal": ("low",),
    "high": ("xhigh",),
    "xhigh": ("high",),
    "max": ("xhigh", "high"),
}


# (Most tokens of thought, effort)
_SMALL_BUDGETS = ((1024, "low"), (2048, "medium"))


def effort_of_budget(field: str, tokens: int | None) -> str | None:
    """Return the effort word for a small thinking budget, of at most 2048 tokens. A model trained
    on such words then ends its thinking sooner by itself. Return None for a larger budget or none.
    field: the request's field, for errors. tokens: the budget. Raises InvalidField below 1."""
    if tokens is None:
        return None
    if tokens < 1:
        raise InvalidField(field, f"must be at least 1, not {tokens}")
    return next((word for most, word in _SMALL_BUDGETS if tokens <= most), None)


def effort_of_template(codec: TextCodec, field: str, effort: str) -> str:
    """Return the effort word itself if the template accepts it, otherwise the nearest accepted
    word. A template without a variable for effort accepts every word. Raises InvalidField naming
    `field` if none is accepted."""
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
        """Return the token ids of a text, int32 [T]. The name of a special token in the text is
        encoded as plain text. field: the request's field, for errors."""
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
        """Return the prompt of a whole conversation: its token ids and marks, as
        ChatTemplate.prompt() does. The arguments are the same. salt: cache salt of the prompt."""
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
        """Return the token ids and marks of messages following a closed turn, as
        ChatTemplate.continuation() does. salt: cache salt of the session."""
        template = self._codec.require_template()
        self._check_messages(messages, 0)
        with self._refusals("messages"):
            return template.continuation(messages, salt=salt, most=self._codec.max_tokens)

    def without_closing(self, rendered: RenderedPrompt) -> RenderedPrompt:
        """Return the prompt without the closing of its last, assistant's message, as
        ChatTemplate.without_closing() does."""
        with self._refusals("messages"):
            return self._codec.require_template().without_closing(rendered)

    def next_turn(
        self,
        messages: Sequence[ChatMessage],
        *,
        salt: bytes,
        variables: Mapping[str, Any] = _NO_VARIABLES,
    ) -> RenderedPrompt:
        """Return the token ids and marks of messages following a closed turn, and of an answer's
        opening after them, as ChatTemplate.next_turn() does."""
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
    """Return the number of characters in all strings given to the template for the message, keys
    included."""
    characters = _MESSAGE_KEYS + len(message.role) + len(message.content)
    if message.tool_calls:
        characters += _CALLS_KEY
    if message.reasoning is not None:
        characters += _REASONING_KEYS + len(message.reasoning)
    for call in message.tool_calls:
        characters += _CALL_KEYS + len(call.name) + _characters(call.arguments)
    return characters


def _characters(value: Any) -> int:
    """Return the number of characters in all strings of a JSON value, keys included."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list | tuple):
        return sum(map(_characters, value))
    if isinstance(value, Mapping):
        return sum(_characters(key) + _characters(item) for key, item in value.items())
    return 0
