"""Reader of the conversation a Responses request continues, and renderer of its prompt.

A turn is a prompt and its answer. A prompt either is the stored tokens of the previous turn
followed by the rendered new items, or is rendered from all messages. Invariant: a prompt continuing
a stored turn begins with the turn's exact tokens. All messages are rendered anew if the
instructions, tools or template variables differ, or if the template rewrites earlier turns.

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

from tasuki.engine.messages import PromptPicture, Tokens
from tasuki.server.errors import InvalidField, InvalidRequest, PromptTooLong
from tasuki.server.http.access import http_request_context
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.openai.generation import ServedModel, prompt_salt
from tasuki.server.openai.messages import NO_EFFORT, read_template_variables
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.openapi.common_fields import MAX_ID
from tasuki.server.openapi.responses_fields import PRESERVES
from tasuki.server.pictures.clips import check_numbering
from tasuki.server.pictures.kept_pictures import TurnPictures, moved
from tasuki.server.pictures.part_reader import pictures_read
from tasuki.server.pictures.sent_picture import SentPicture
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
    """The inputs of a prompt's text, except its messages. tools: definitions for the template.
    variables: further variables of the template, by name."""

    instructions: str | None
    tools: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any]

    @property
    def digest(self) -> bytes:
        content = msgspec.json.encode((self.instructions, self.tools, self.variables))
        return hashlib.blake2b(content, digest_size=16).digest()


def turn_prompt(
    model: ServedModel,
    settings: PromptSettings,
    messages: Sequence[ChatMessage],
    before: StoredTurn | None,
    old: int,
    salt: bytes,
    sent: Sequence[SentPicture] = (),
) -> RenderedPrompt:
    """Return the prompt of the whole conversation. It continues the stored tokens of the previous
    turn if the template can. `settings` must equal the turn's, and a user's or tool's message come
    first. Otherwise all messages are rendered anew.

    messages: messages of the previous turn, then the new ones. before: the stored previous turn;
    None: there is none. old: number of messages of the previous turn. salt: cache salt of the
    prompt. sent: pictures of all messages, in their order. Raises InvalidRequest, PromptTooLong.
    """
    new = messages[old:]
    if not new:
        raise InvalidField("input", "is empty: send at least one item")
    if new[-1].role == "assistant":
        raise InvalidField("input", "must not end with an assistant's: no answer is continued here")
    goes_on = before is not None and before.context == settings.digest
    if before is not None and goes_on and new[0].role in ("user", "tool"):
        exact = _behind(model, settings, new, before, salt, sent)
        if exact is not None:
            return exact
    rendered = ChatRenderer(model.codec).conversation(
        _instructed(settings.instructions, messages),
        open_answer=True,
        salt=salt,
        tools=settings.tools,
        variables=settings.variables,
    )
    return model.with_pictures(rendered, sent, salt)


def _behind(
    model: ServedModel,
    settings: PromptSettings,
    new: Sequence[ChatMessage],
    before: StoredTurn,
    salt: bytes,
    sent: Sequence[SentPicture],
) -> RenderedPrompt | None:
    """Return the stored tokens of turn `before`, followed by the rendered new messages. Return None
    if the template cannot continue a turn without rendering it again. sent: pictures of all
    messages, those of `before` first."""
    renderer = ChatRenderer(model.codec)
    try:
        rendered = renderer.next_turn(new, salt=salt, variables=settings.variables)
        closing = renderer.answer_closing()
    except PromptTooLong:
        raise
    except InvalidRequest:
        return None
    rendered = model.with_pictures(rendered, sent[len(before.pictures.sent) :], salt)
    begun = _closed(before.tokens, closing)
    tokens = np.concatenate([begun, rendered.tokens])
    marks = tuple(len(begun) + mark for mark in rendered.marks)
    pictures = (*before.pictures.placed, *moved(rendered.pictures, len(begun)))
    return RenderedPrompt(tokens, marks, rendered.thinking, pictures=pictures)


def _closed(tokens: Tokens, closing: Tokens) -> Tokens:
    """Return a turn's tokens followed by the template's closing of an answer. If the model itself
    sampled the first closing token, the token is not repeated."""
    ended = len(closing) > 0 and len(tokens) > 0 and tokens[-1] == closing[0]
    return np.concatenate([tokens, closing[1:] if ended else closing])


def _instructed(instructions: str | None, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Return the messages with the request's instructions first, before the text of a system
    message."""
    if instructions is None:
        return messages
    if messages[0].role != "system":
        return [ChatMessage("system", instructions), *messages]
    joined = f"{instructions}\n\n{messages[0].content}"
    return [ChatMessage("system", joined), *messages[1:]]


VARIABLES = ("chat_template_kwargs", "enable_thinking", "preserve_thinking")
"""Request fields with variables for the chat template, besides `reasoning`."""


@dataclass(frozen=True)
class AskedTurn:
    """The conversation of a request, and the inputs of its prompt. messages: all messages, the
    stored ones first. before: the stored turn to continue, if any. old: number of messages of
    `before`. salt: cache salt of the prompt. named: the stored conversation named by the client, if
    any. sent: pictures of all messages, in their order."""

    messages: Sequence[ChatMessage]
    settings: PromptSettings
    before: StoredTurn | None
    old: int
    salt: bytes
    named: Conversation | None
    sent: Sequence[SentPicture] = ()

    def kept_pictures(self, placed: tuple[PromptPicture, ...]) -> TurnPictures:
        """Return the pictures to store with the turn. placed: those of its prompt."""
        # Copies, because the given ones may hold their decoded files too.
        return TurnPictures(tuple(one.bare() for one in self.sent), placed)

    def prompt(self, model: ServedModel, *more: ChatMessage) -> RenderedPrompt:
        """Return the prompt for an answer to the conversation, with the messages `more` at its end.
        Raises InvalidRequest, PromptTooLong."""
        messages = [*self.messages, *more]
        return turn_prompt(
            *(model, self.settings, messages, self.before, self.old, self.salt, self.sent)
        )


def read_turn(
    model: ServedModel,
    store: Responses,
    request: web.Request,
    fields: RequestFields,
    tools: ResponseTools,
) -> AskedTurn:
    """Return the conversation of a request: the stored part it names, and its own input. Raises
    InvalidField, also for a tool output without its call; PromptTooLong, PermissionDenied,
    HttpRefusal."""
    previous, named = previous_response(store, request, fields), _named(store, request, fields)
    before = None if previous is None else previous.turn
    if named is not None:
        before = named.turn
    old = () if before is None else before.messages()
    stored = StoredItems(store, http_request_context(request))
    reader = model.picture_reader(fields, () if before is None else before.pictures.sent)
    begun: Sequence[ChatMessage] = old
    if named is not None:
        begun = read_input(named.uncovered, old, stored, "conversation", reader)
    messages = read_input(fields.get("input"), begun, stored, pictures=reader)
    if before is not None:
        _check_outputs(messages, len(old))
    variables, sent = template_variables(model.codec, fields), pictures_read(reader)
    check_numbering(variables, sent)
    settings = PromptSettings(fields.text("instructions"), tools.definitions, variables)
    salt = prompt_salt(request, fields)
    return AskedTurn(messages, settings, before, len(old), salt, named, sent)


def previous_response(
    store: Responses, request: web.Request, fields: RequestFields
) -> StoredResponse | None:
    """Return the stored response named by `previous_response_id`, or None without the field. Raises
    HttpRefusal if it is not stored."""
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
    """Return the stored conversation named by the field `conversation`, or None without the field.
    Raises InvalidField, HttpRefusal."""
    name = conversation_id(fields)
    if name is None:
        return None
    if fields.get("previous_response_id") is not None:
        raise InvalidField("conversation", "must not stand beside previous_response_id")
    if store.values is None:
        raise InvalidField("conversation", "needs a node without --front-workers: leave it out")
    return ConversationStore(store.values).get(http_request_context(request), name)


def conversation_id(fields: RequestFields) -> str | None:
    """Return the id in the field `conversation`, or None without the field. Raises InvalidField."""
    given = fields.get("conversation")
    name = given.get("id") if isinstance(given, dict) else given
    if given is not None and not isinstance(name, str):
        raise InvalidField("conversation", "must be an id, or an object with an id")
    return name


def keeper(
    store: Responses, request: web.Request, fields: RequestFields, named: Conversation | None
) -> Store | None:
    """Return a function to store the response of this request at its end. For a response not to be
    stored, return `store.unstored` for the caller, or None. named: conversation to add the response
    to; None: none."""
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
    """Return True if the response is to be stored: the request's `store`, by default True. Raises
    InvalidField."""
    return fields.flag("store", default=True)


def _check_outputs(messages: Sequence[ChatMessage], old: int) -> None:
    """Raise InvalidField if a new tool output answers no tool call. Called only if the request
    continues a stored turn, because a stored turn has all its calls. A conversation sent whole may
    have lost some. old: number of messages of the stored turn."""
    waiting = 0
    for place, message in enumerate(messages):
        if message.role == "tool":
            waiting -= 1
            if waiting < 0 and place >= old:
                raise InvalidField("input", "holds an output that answers no call: send the call")
            waiting = max(0, waiting)
        waiting += len(message.tool_calls)


def template_variables(codec: TextCodec, fields: RequestFields) -> dict[str, Any]:
    """Return the chat template's variables, under the names used by chat requests.
    `reasoning.summary` is ignored: no summaries are made, and the reasoning's text is shown. Raises
    InvalidField."""
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
