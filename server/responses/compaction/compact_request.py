"""What POST /v1/responses/compact asks: the conversation, with the question for its summary behind
it. On any thread.

The summary is the served model's own. With the instructions and tools of the conversation's turns
the prompt begins as theirs, so that the cache has nearly all of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import uuid4

from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.errors import InvalidField, PromptTooLong
from tasuki.server.fields.responses import OF_COMPACT
from tasuki.server.http.auth import http_request_context
from tasuki.server.openai.generation import ServedModel, prompt_salt, read_submit
from tasuki.server.openai.request_fields import RequestFields, check_account_fields
from tasuki.server.openai.sampling import AnswerOptions, read_options
from tasuki.server.replies.kept_bytes import submit_bytes, value_bytes
from tasuki.server.responses.asked_turn import previous_response, template_variables
from tasuki.server.responses.carried.compaction_item import SUMMARY_LEAD
from tasuki.server.responses.input_items import read_input
from tasuki.server.responses.stored_items import StoredItems, item_id
from tasuki.server.responses.stored_responses import Responses, StoredTurn
from tasuki.server.responses.tools import read_response_tools
from tasuki.server.responses.turn_prompt import PromptSettings, turn_prompt
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_template import RenderedPrompt

from .compaction_writer import CompactionWriter

_QUESTION = ChatMessage(
    "user",
    "Summarise our conversation so far, for yourself: you will go on from the summary and from "
    "some of my messages alone. State what I want, what was decided and done, which names, paths, "
    "numbers and lines of code are needed later, what tools returned, and what is left to do. "
    "Write the summary alone, and call no tool.",
)
_QUIET = {"enable_thinking": False}
_MOST_TOKENS = 4096
_SHARE = 4
"""The summary has a quarter of the context at most."""


@dataclass(frozen=True)
class AskedCompaction:
    """kept_bytes: memory that these take until the reply's end."""

    submit: Submit
    options: AnswerOptions
    writer: CompactionWriter
    kept_bytes: int


def read_compact_request(
    model: ServedModel, store: Responses, request: web.Request, fields: RequestFields
) -> AskedCompaction:
    """Raises InvalidRequest, PromptTooLong, PermissionDenied, HttpRefusal."""
    fields.refuse_unknown(OF_COMPACT)
    check_account_fields(fields)
    previous = previous_response(store, request, fields)
    before = None if previous is None else previous.turn
    old = () if before is None else before.messages()
    given = fields.get("input")
    stored = StoredItems(store, http_request_context(request))
    messages = read_input([] if given is None else given, old, stored)
    if not messages:
        raise InvalidField("input", "is empty: send at least one item")
    tools = read_response_tools(fields)
    asked = PromptSettings(
        fields.text("instructions"), tools.definitions, template_variables(model.codec, fields)
    )
    limit = min(_MOST_TOKENS, max(1, model.max_tokens // _SHARE))
    salt = prompt_salt(request, fields)
    prompt = _prompt(model, asked, messages, before, len(old), salt, model.max_tokens - limit)
    options = read_options(
        RequestFields({"temperature": 0, "max_tokens": limit}),
        *(model.codec, limit, model.sampling_defaults, 0),
    )
    submit = read_submit(request, fields, prompt, options, model)
    response_id = f"resp_{uuid4().hex}"
    kept = _kept_items(response_id, messages, model.max_tokens)
    parser = model.parser(prompt.thinking, tools.definitions, parallel_calls=True)
    writer = CompactionWriter(response_id, kept, parser)
    size = submit_bytes(submit) + value_bytes(tools.definitions) + value_bytes(kept)
    return AskedCompaction(submit, options, writer, size)


def _prompt(
    model: ServedModel,
    asked: PromptSettings,
    messages: Sequence[ChatMessage],
    before: StoredTurn | None,
    old: int,
    salt: bytes,
    most: int,
) -> RenderedPrompt:
    """Return the prompt of the conversation and the question. most: tokens; of what is longer the
    older half is left out until it fits. Raises PromptTooLong where no message fits."""
    quiet = replace(asked, variables={**asked.variables, **_QUIET})
    if before is not None and before.context == asked.digest:
        # The question alone is rendered otherwise, behind the turn's own tokens.
        before = replace(before, context=quiet.digest)
    while True:
        try:
            prompt = turn_prompt(model.codec, quiet, [*messages, _QUESTION], before, old, salt)
            if len(prompt.tokens) <= most:
                return prompt
            error = PromptTooLong(
                f"input has {len(prompt.tokens)} tokens, and a summary of it needs room: send less"
            )
        except PromptTooLong as too_long:
            error = too_long
        messages, before, old = _newer_half(messages), None, 0
        if not messages:
            raise error


def _newer_half(messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
    """Begins with a question, since templates refuse what answers none."""
    later = messages[len(messages) // 2 + len(messages) % 2 :]
    questions = (place for place, message in enumerate(later) if message.role == "user")
    first = next(questions, None)
    return () if first is None else later[first:]


def _kept_items(
    response_id: str, messages: Sequence[ChatMessage], letters: int
) -> list[dict[str, Any]]:
    """Return the first system message and the user's newest messages, as far as these have so many
    letters: about a quarter of the context. Summaries of before are in the new one."""
    kept: list[ChatMessage] = []
    for message in reversed(messages):
        if message.role != "user" or message.content.startswith(SUMMARY_LEAD):
            continue
        letters -= len(message.content)
        if letters < 0:
            break
        kept.append(message)
    if messages[0].role == "system":
        kept.append(messages[0])
    kept.reverse()
    return [
        {
            "id": item_id("msg", response_id, place),
            "type": "message",
            "status": "completed",
            "role": "developer" if message.role == "system" else "user",
            "content": [{"type": "input_text", "text": message.content}],
        }
        for place, message in enumerate(kept)
    ]
