"""Reader of the conversation continued by a Responses request, and renderer of its prompt.

A prompt is rendered whole, or it is the exact tokens of the previous response followed by the new
items. Invariant: a prompt continuing a stored turn begins with the turn's tokens. These changes
force a whole rendering: other instructions, tools or template variables; or a template rewriting
earlier turns.

Pure functions; any thread.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from tasuki.engine.messages import Tokens
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.http.access import http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openai.generation import ServedModel, prompt_salt
from tasuki.server.openai.messages import NO_EFFORT, read_template_variables
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.openapi.common_fields import MAX_ID
from tasuki.server.openapi.responses_fields import PRESERVES
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_renderer import EFFORT, ChatRenderer, effort_of_template
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_codec import TextCodec

from .conversations import Conversation, ConversationStore, given_items
from .input_items import read_input
from .stored_responses import Responses, Store, StoredItems, StoredResponse, StoredTurn
from .tools import ResponseTools


@dataclass(frozen=True)
class PromptSettings:
    """The inputs of a prompt's text, except its messages. variables: variables of the template."""

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

    messages: messages of the previous turn, then the new ones. old: number of messages of the
    previous turn. Raises InvalidRequest, PromptTooLong.
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
    """Return the prompt after the turn's tokens, or None if the template cannot continue a turn."""
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
    """Return the tokens with the answer closed. If the model ended its answer itself, the first
    closing token is already there."""
    ended = len(closing) > 0 and len(tokens) > 0 and tokens[-1] == closing[0]
    return np.concatenate([tokens, closing[1:] if ended else closing])


def _instructed(instructions: str | None, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return the messages with the instructions first, before the developer's text."""
    if instructions is None:
        return messages
    if messages[0].role != "system":
        return [ChatMessage("system", instructions), *messages]
    joined = f"{instructions}\n\n{messages[0].content}"
    return [ChatMessage("system", joined), *messages[1:]]


VARIABLES = ("chat_template_kwargs", "enable_thinking", "preserve_thinking")
"""Fields for the template's variables, besides `reasoning`."""


@dataclass(frozen=True)
class AskedTurn:
    """A conversation to continue. messages: the whole conversation. old: number of messages of the
    continued turn, if any. named: the conversation named by the client, if any."""

    messages: Sequence[ChatMessage]
    settings: PromptSettings
    before: StoredTurn | None
    old: int
    salt: bytes
    named: Conversation | None

    def prompt(self, codec: TextCodec, *more: ChatMessage) -> RenderedPrompt:
        """Return the prompt for an answer to the conversation and these messages. Raises
        InvalidRequest, PromptTooLong."""
        messages = [*self.messages, *more]
        return turn_prompt(codec, self.settings, messages, self.before, self.old, self.salt)


def read_turn(
    model: ServedModel,
    store: Responses,
    request: web.Request,
    fields: RequestFields,
    tools: ResponseTools,
) -> AskedTurn:
    """Return the request's turn. Raises InvalidField, PromptTooLong, PermissionDenied,
    HttpRefusal."""
    previous, named = previous_response(store, request, fields), _named(store, request, fields)
    before = None if previous is None else previous.turn
    if named is not None:
        before = named.turn
    old = () if before is None else before.messages()
    stored = StoredItems(store, http_request_context(request))
    begun = old if named is None else read_input(named.uncovered, old, stored, "conversation")
    messages = read_input(fields.get("input"), begun, stored)
    if before is not None:
        _check_outputs(messages, len(old))
    settings = PromptSettings(
        fields.text("instructions"), tools.definitions, template_variables(model.codec, fields)
    )
    salt = prompt_salt(request, fields)
    return AskedTurn(messages, settings, before, len(old), salt, named)


def previous_response(
    store: Responses, request: web.Request, fields: RequestFields
) -> StoredResponse | None:
    """Return the response continued by the request, if any. Raises HttpRefusal."""
    name = fields.text("previous_response_id")
    if name is None:
        return None
    found = store.get(http_request_context(request), name)
    if found is None:
        raise HttpRefusal(
            400,
            "previous_response_not_found",
            f"previous_response_id {name!r:.100} is not stored here: send the whole conversation",
        )
    return found


def _named(store: Responses, request: web.Request, fields: RequestFields) -> Conversation | None:
    """Return the conversation named by the request, if any. Raises InvalidField, HttpRefusal."""
    name = conversation_id(fields)
    if name is None:
        return None
    if fields.get("previous_response_id") is not None:
        raise InvalidField("conversation", "must not stand beside previous_response_id")
    if store.values is None:
        raise InvalidField("conversation", "needs a node without --front-workers: leave it out")
    return ConversationStore(store.values).get(http_request_context(request), name)


def conversation_id(fields: RequestFields) -> str | None:
    """Return the id of the conversation named by the request, if any. Raises InvalidField."""
    given = fields.get("conversation")
    name = given.get("id") if isinstance(given, dict) else given
    if given is not None and not isinstance(name, str):
        raise InvalidField("conversation", "must be an id, or an object with an id")
    return name


def keeper(
    store: Responses, request: web.Request, fields: RequestFields, named: Conversation | None
) -> Store | None:
    """Return the function for storing the response at its end; None: it is not stored. named: the
    response's conversation."""
    context = http_request_context(request)
    if not is_stored(fields):
        return None if store.unstored is None else partial(store.unstored, context)
    if named is None or store.values is None:
        return partial(store.put, context)
    conversations = ConversationStore(store.values)
    given = given_items(fields.get("input"), StoredItems(store, context))

    def keep(response: StoredResponse) -> None:
        store.put(context, response)
        conversations.add_response(context, named, given, response)

    return keep


def is_stored(fields: RequestFields) -> bool:
    """Return True if the response is to be stored. Raises InvalidField."""
    return fields.flag("store", default=True)


def _check_outputs(messages: Sequence[ChatMessage], old: int) -> None:
    """Raise InvalidField if a new tool output answers no call. Checked only after a stored turn,
    because a turn has all its calls. A conversation sent whole may have lost its calls. old: number
    of messages of the turn."""
    waiting = 0
    for place, message in enumerate(messages):
        if message.role == "tool":
            waiting -= 1
            if waiting < 0 and place >= old:
                raise InvalidField("input", "holds an output that answers no call: send the call")
            waiting = max(0, waiting)
        waiting += len(message.tool_calls)


def template_variables(codec: TextCodec, fields: RequestFields) -> dict[str, Any]:
    """Return them as chats name them. Summaries of reasoning are not made: its text is shown."""
    reasoning = fields.fields("reasoning")
    context = reasoning.text("context")
    if context not in PRESERVES:
        raise InvalidField("reasoning.context", "must be auto, current_turn or all_turns")
    asked = fields.only(*VARIABLES)
    if asked.get("preserve_thinking") is None:
        asked = asked.changed(preserve_thinking=PRESERVES[context])
    effort = reasoning.short_text("effort", MAX_ID, "reasoning.effort")
    if effort is not None and effort != NO_EFFORT:
        effort = effort_of_template(codec, "reasoning.effort", effort)
    return read_template_variables(asked.changed(**{EFFORT: effort}))
