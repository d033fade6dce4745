"""The prompt of a response: rendered whole, or the exact tokens of the response before and what is
new behind them.

Pure functions; any thread. Invariant: a prompt that goes on from a stored turn begins with that
turn's tokens, unless instructions, tools or the template's variables are others now, or the
template writes earlier turns anew: then the whole conversation is rendered.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from tasuki.engine.messages import Tokens
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.chat_template import RenderedPrompt
from tasuki.server.text.text_codec import TextCodec

from .stored_responses import StoredTurn


@dataclass(frozen=True)
class PromptSettings:
    """All that a prompt's text depends on beside its messages. variables: of the template."""

    instructions: str | None
    tools: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]

    @property
    def digest(self) -> bytes:
        content = msgspec.json.encode((self.instructions, self.tools, self.variables))
        return hashlib.blake2b(content, digest_size=16).digest()


def turn_prompt(
    codec: TextCodec,
    settings: PromptSettings,
    messages: Sequence[ChatMessage],
    before: StoredTurn | None,
    old: int,
    salt: bytes,
) -> RenderedPrompt:
    """Return the prompt of the whole conversation.

    messages: those of the turn before, and then the new ones. old: how many are of that turn.
    Raises InvalidRequest, PromptTooLong.
    """
    new = messages[old:]
    if not new:
        raise InvalidField("input", "is empty: send at least one item")
    if new[-1].role == "assistant":
        raise InvalidField("input", "must not end with an assistant's: no answer is continued here")
    goes_on = before is not None and before.context == settings.digest
    if before is not None and goes_on and new[0].role in ("user", "tool"):
        exact = _behind(codec, settings, new, before, salt)
        if exact is not None:
            return exact
    return ChatRenderer(codec).conversation(
        _instructed(settings.instructions, messages),
        open_answer=True,
        salt=salt,
        tools=settings.tools,
        variables=settings.variables,
    )


def _behind(
    codec: TextCodec,
    settings: PromptSettings,
    new: Sequence[ChatMessage],
    before: StoredTurn,
    salt: bytes,
) -> RenderedPrompt | None:
    """None where the template cannot go on from a turn."""
    renderer = ChatRenderer(codec)
    try:
        rendered = renderer.next_turn(new, salt=salt, variables=settings.variables)
        closing = renderer.answer_closing()
    except PromptTooLong:
        raise
    except InvalidRequest:
        return None
    begun = _closed(before.tokens, closing)
    tokens = np.concatenate([begun, rendered.tokens])
    marks = tuple(len(begun) + mark for mark in rendered.marks)
    return RenderedPrompt(tokens, marks, rendered.thinking)


def _closed(tokens: Tokens, closing: Tokens) -> Tokens:
    """A model that ended its answer itself wrote the first token of what closes it."""
    ended = len(closing) > 0 and len(tokens) > 0 and tokens[-1] == closing[0]
    return np.concatenate([tokens, closing[1:] if ended else closing])


def _instructed(instructions: str | None, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Instructions come first, before what the developer wrote."""
    if instructions is None:
        return messages
    if messages[0].role != "system":
        return [ChatMessage("system", instructions), *messages]
    joined = f"{instructions}\n\n{messages[0].content}"
    return [ChatMessage("system", joined), *messages[1:]]
