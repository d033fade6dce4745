"""POST /v1/chat/completions: reader of a chat request, and writer of its answer in OpenAI's shape.

ChatReply owns the answer so far: reasoning, content, tool calls, logprobs. It sends nothing over
HTTP itself. One answer, one thread.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec
import numpy as np
from aiohttp import web

from tasuki.engine.messages import Submit, Tokens
from tasuki.server.auth.limits import ids_bytes, score_bytes, submit_bytes, value_bytes
from tasuki.server.errors import InvalidField
from tasuki.server.openapi.openai_fields import OF_CHATS
from tasuki.server.pictures.clips import check_numbering
from tasuki.server.pictures.part_reader import pictures_read
from tasuki.server.request_checks import check_length, checked_prediction
from tasuki.server.text.chat_message import ChatMessage
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.grammars.call_grammar import answer_grammar
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_answer import (
    AnswerItem,
    CallArguments,
    CallBegin,
    CallEnd,
    Content,
    Ending,
    GrowingText,
    Piece,
    Reasoning,
    Thinking,
)
from tasuki.server.text.text_codec import TextCodec

from .generation import (
    AskedReply,
    ServedModel,
    name_unknown,
    prompt_salt,
    read_submit,
    shown_prompts,
)
from .messages import (
    parallel_calls,
    read_chat_messages,
    read_content,
    read_offered_tools,
    read_template_variables,
    read_tool_choice,
    read_tools,
)
from .reply import ReplyHead, TextChoice, to_json
from .request_fields import RequestFields, check_account_fields
from .sampling import (
    SHOWN_IDS,
    AnswerOptions,
    read_answer_format,
    read_options,
    read_prompt_logprobs,
    read_token_names,
    read_top_logprobs,
)
from .token_details import (
    ScoredPrompt,
    TokenNames,
    check_scores,
    json_prompt_logprobs,
    token_logprob,
)

_CALL_BYTES = 500
"""Bytes of memory counted for one tool call of the answer, without its arguments."""


class ChatReply:
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"
    prompt_in_choice = False

    def __init__(
        self,
        head: ReplyHead,
        parser: AnswerParser,
        names: TokenNames,
        index: int = 0,
        *,
        with_logprobs: bool,
        streamed: bool,
        with_reasoning: bool = True,
        prompt_logprobs: tuple[ScoredPrompt, int] | None = None,
    ) -> None:
        """parser: splits the answer into reasoning, content and calls. names: rule for naming
        tokens in logprobs. index: index of the choice in the reply. with_logprobs: show each
        token's logprob, and the logprobs of the likeliest tokens reported by the engine. streamed:
        keep no text for `whole()`, to bound the memory. with_reasoning: show the reasoning's text;
        its tokens are counted either way. prompt_logprobs: the scored prompt, and the number of
        likeliest tokens shown at each position; None: no logprobs of the prompt."""
        self.head = head
        self.may_complete = parser.may_complete
        self._index = index
        self._content_choice = TextChoice(lambda text: self._chunk({"content": text}))
        self._reasoning_choice = TextChoice(lambda text: self._chunk(_reasoning(text)))
        # For the open call.
        self._arguments_choice = TextChoice(lambda text: self._chunk(_arguments(0, text)))
        self._arguments_number = 0
        self._parser = parser
        self._names = names
        self._with_logprobs = with_logprobs
        self._prompt_logprobs = prompt_logprobs
        self._with_reasoning = with_reasoning
        self.keeps = not streamed or parser.may_hold
        self.is_streamed = streamed
        self.plain: TextChoice | None = None
        self._content = GrowingText()
        self._reasoning = GrowingText()
        self._calls: list[tuple[CallBegin, GrowingText]] = []
        self._arguments_bytes = 0
        self._logprobs = bytearray()
        """Logprobs of the answer so far: JSON entries, each followed by a comma. Python objects
        would take five times the memory."""

    @property
    def complete(self) -> bool:
        return self._parser.complete

    def opening(self) -> list[bytes]:
        return [to_json(self._chunk({"role": "assistant", "content": ""}))]

    def push(self, piece: Piece) -> list[bytes]:
        items = self._kept(self._parser.push(piece))
        if not self._with_logprobs or piece.token is None:
            if self.is_streamed and not self._with_logprobs and self._parser.passes_content:
                self.plain = self._content_choice
            return self._choices(items)
        entry = token_logprob(piece.token, self._names)
        if not self.is_streamed:
            self._logprobs += to_json(entry) + b","
        shown = [item for item in items if not isinstance(item, CallEnd)]
        # A token has its logprob now, even if its text is held back.
        delta = _delta(shown[0]) if shown else {"content": ""}
        return [to_json(self._chunk(delta, [entry])), *self._choices(shown[1:])]

    def finish(self, ending: Ending) -> list[bytes]:
        choices = self._choices(self._kept(self._parser.finish(ending)))
        return [*choices, to_json({**self._chunk({}), "finish_reason": self._reason(ending)})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        content, reasoning = str(self._content), str(self._reasoning)
        calls = [_call(begin, str(arguments)) for begin, arguments in self._calls]
        message: dict[str, Any] = {"role": "assistant", "content": content}
        if calls or reasoning:
            message["content"] = content or None
        message.update(_reasoning(reasoning or None))
        if calls:
            message["tool_calls"] = calls
        return {
            "index": self._index,
            "message": message,
            "logprobs": {"content": self._whole_logprobs()} if self._with_logprobs else None,
            "finish_reason": self._reason(ending),
        }

    def _whole_logprobs(self) -> msgspec.Raw:
        return msgspec.Raw(b"[" + self._logprobs.removesuffix(b",") + b"]")

    @property
    def kept_bytes(self) -> int:
        texts = self._content.kept_bytes + self._reasoning.kept_bytes
        kept = len(self._logprobs) + texts + self._arguments_bytes
        return kept + self._parser.held_bytes

    def beside_choices(self) -> dict[str, Any]:
        if self._prompt_logprobs is None:
            return {}
        tokenizer = self._names.tokenizer
        return {"prompt_logprobs": json_prompt_logprobs(*self._prompt_logprobs, tokenizer)}

    def reasoning_tokens(self, ending: Ending) -> int | None:
        return self._parser.ending(ending).reasoning_tokens

    def _reason(self, ending: Ending) -> str:
        end = self._parser.ending(ending)
        return "tool_calls" if end.awaits_tools else end.ending.reason.value

    def _kept(self, items: list[AnswerItem]) -> list[AnswerItem]:
        """Return the parts of the answer shown in the reply, without hidden reasoning. Store their
        texts if the reply is not streamed."""
        if not self._with_reasoning:
            items = [item for item in items if not isinstance(item, Reasoning)]
        if self.is_streamed:
            return items
        for item in items:
            match item:
                case Content(text):
                    self._content.add(text)
                case Reasoning(text):
                    self._reasoning.add(text)
                case CallBegin():
                    self._calls.append((item, GrowingText()))
                    self._arguments_bytes += _CALL_BYTES
                case CallArguments(number, text):
                    self._calls[number][1].add(text)
                    self._arguments_bytes += len(text)
        return items

    def _choices(self, items: Sequence[AnswerItem]) -> list[bytes]:
        return [self._choice(item) for item in items if not isinstance(item, CallEnd)]

    def _choice(self, item: AnswerItem) -> bytes:
        if isinstance(item, Content):
            return self._content_choice.holding(item.text)
        if isinstance(item, Reasoning):
            return self._reasoning_choice.holding(item.text)
        if isinstance(item, CallArguments):
            if item.number != self._arguments_number:
                self._arguments_number = item.number
                self._arguments_choice = TextChoice(
                    lambda text: self._chunk(_arguments(self._arguments_number, text))
                )
            return self._arguments_choice.holding(item.json)
        return to_json(self._chunk(_delta(item)))

    def _chunk(
        self, delta: dict[str, Any], logprobs: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        content = None if logprobs is None else {"content": logprobs}
        return {"index": self._index, "delta": delta, "logprobs": content, "finish_reason": None}


def _delta(item: AnswerItem) -> dict[str, Any]:
    match item:
        case Content(text):
            return {"content": text}
        case Reasoning(text):
            return _reasoning(text)
        case CallBegin(number):
            return {"tool_calls": [{"index": number, **_call(item, "")}]}
        case CallArguments(number, text):
            return _arguments(number, text)
    raise AssertionError(f"{item} has no delta")


def _arguments(number: int, text: str) -> dict[str, Any]:
    return {"tool_calls": [{"index": number, "function": {"arguments": text}}]}


def _call(begin: CallBegin, arguments: str) -> dict[str, Any]:
    function = {"name": begin.name, "arguments": arguments}
    return {"id": begin.id, "type": "function", "function": function}


def _reasoning(text: str | None) -> dict[str, Any]:
    """Return the fields of a message for its reasoning: the common name `reasoning_content` and
    vLLM's newer `reasoning`."""
    return {"reasoning_content": text, "reasoning": text}


_SHOWN = frozenset({*SHOWN_IDS, "include_reasoning", "continue_final_message"})
_HONOURED = frozenset({"n", "best_of", "prompt_logprobs"}) | _SHOWN


def read_chat(model: ServedModel, request: web.Request, fields: RequestFields) -> AskedReply:
    """Read a chat request on any thread. Return its engine request, options and reply choices.
    Raises InvalidRequest, PromptTooLong, PermissionDenied, HttpRefusal."""
    name_unknown(model, request, fields, OF_CHATS)
    prompt_logprobs = read_prompt_logprobs(fields)
    submit, options, parsers = read_chat_request(model, request, fields, prompt_logprobs, _HONOURED)
    check_scores("prompt_logprobs", [submit], 1)
    scored = None if prompt_logprobs is None else ScoredPrompt(submit.prompt, submit.pictures)
    head = ReplyHead(f"chatcmpl-{submit.request_id}", model.named(fields.text("model")))
    shapes = [
        ChatReply(
            head,
            parsers(),
            read_token_names(fields, model.codec),
            place,
            with_logprobs=fields.flag("logprobs"),
            streamed=options.stream,
            with_reasoning=fields.flag("include_reasoning", default=True),
            prompt_logprobs=None if scored is None else (scored, prompt_logprobs or 0),
        )
        for place in range(options.choices)
    ]
    kept = submit_bytes(submit) + score_bytes(submit, 1) + value_bytes(read_tools(fields))
    ids = shown_prompts(fields, [submit])
    return AskedReply([submit], options, shapes, [scored], kept + ids_bytes(ids), ids)


def read_chat_request(
    model: ServedModel,
    request: web.Request,
    fields: RequestFields,
    prompt_logprobs: int | None = None,
    honoured: Collection[str] = (),
) -> tuple[Submit, AnswerOptions, Callable[[], AnswerParser]]:
    """Read a chat request for a reply of any API, on any thread. fields: fields of
    /v1/chat/completions. prompt_logprobs: value of `Submit.prompt_logprobs`. honoured: names of
    fields accepted in spite of read_options(), because the caller reads them. Return the engine
    request, the answer's options, and a function to make the parser of one answer. Raises as
    read_chat()."""
    check_account_fields(fields)
    salt = prompt_salt(request, fields)
    rendered = render_chat(fields, model, open_answer=opens_answer(fields), salt=salt)
    # Without a limit an answer may use the rest of the context, as in other servers.
    left = max(1, model.max_tokens - len(rendered.tokens))
    top = read_top_logprobs(fields, "top_logprobs")
    if top and not fields.flag("logprobs"):
        raise InvalidField("top_logprobs", "needs logprobs: true")
    options = read_options(
        fields, model.codec, left, model.sampling_defaults, top, honoured=honoured
    )
    tools, parallel = read_tools(fields), parallel_calls(fields)
    asked = answer_grammar(
        read_tool_choice(fields),
        read_offered_tools(fields),
        read_answer_format(fields),
        model.codec,
        parallel=parallel,
    )
    options = options.placed(asked, rendered.thinking, model.codec)
    submit = read_submit(request, fields, rendered, options, model, prompt_logprobs=prompt_logprobs)
    submit = replace(submit, prediction=_prediction(fields, model.codec))
    thinking = rendered.thinking
    is_parsed = bool(tools) or thinking is not Thinking.NEVER
    options, stops = options.split_stops(model.stop_place, is_parsed=is_parsed)
    parser = partial(
        model.parser, thinking, tools, parallel, stops, options.sampling.thinking_tokens
    )
    return submit, options, parser


def opens_answer(fields: RequestFields) -> bool:
    """Return True if the prompt ends with the template's opening of an assistant turn.
    `add_generation_prompt` decides. Without it, return True unless the request sets
    `continue_final_message`."""
    if fields.get("add_generation_prompt") is None:
        return not fields.flag("continue_final_message")
    return fields.flag("add_generation_prompt")


def render_chat(
    fields: RequestFields, model: ServedModel, *, open_answer: bool, salt: bytes
) -> RenderedPrompt:
    """Render `messages` and `tools` as prompt tokens with the checkpoint's chat template.
    open_answer: end the prompt with the opening of an assistant turn. For `continue_final_message`,
    the last message is left unclosed. salt: cache salt of the prompt. Raises InvalidRequest,
    PromptTooLong, PictureTooLarge, PictureNotFetched."""
    reader, renderer = model.picture_reader(fields), ChatRenderer(model.codec)
    messages = read_chat_messages(fields, reader)
    variables = read_template_variables(fields)
    check_numbering(variables, pictures_read(reader))
    goes_on = fields.flag("continue_final_message")
    if goes_on:
        _check_goes_on(messages, open_answer)
    rendered = renderer.conversation(
        messages,
        open_answer=open_answer,
        salt=salt,
        tools=read_tools(fields),
        variables=variables,
    )
    if goes_on:
        rendered = renderer.without_closing(rendered)
    return model.with_pictures(rendered, pictures_read(reader), salt)


def _check_goes_on(messages: Sequence[ChatMessage], open_answer: bool) -> None:
    """Raise InvalidField if the model cannot continue the last message for
    `continue_final_message`. open_answer: the prompt would end with the opening of a new assistant
    turn."""
    field = "continue_final_message"
    if open_answer:
        raise InvalidField(field, "needs add_generation_prompt: false")
    if messages[-1].role != "assistant" or messages[-1].tool_calls:
        raise InvalidField(field, "needs a last message that is an assistant's, without tool_calls")


def _prediction(fields: RequestFields, codec: TextCodec) -> Tokens:
    """Return the tokens of the request's `prediction`, the expected answer. Return an empty array
    without a prediction. The engine may propose draft tokens from it. A prediction never changes
    the answer's tokens. Raises InvalidRequest."""
    if fields.get("prediction") is None:
        return np.empty(0, dtype=np.int32)
    given = fields.fields("prediction")
    if given.text("type") != "content":
        raise InvalidField("prediction.type", 'must be "content"')
    text = read_content(given.get("content"), "prediction.content", optional=False)
    tokenizer = codec.require_tokenizer()
    # A text of this length is not worth encoding.
    check_length("prediction", len(text) // tokenizer.longest_token, codec)
    return checked_prediction(tokenizer.encode(text), codec)
