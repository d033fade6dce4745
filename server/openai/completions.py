"""POST /v1/completions: reader of a completion request, and writer of its answer in OpenAI's shape.

CompletionReply owns the answer so far: text and logprobs, after the prompt's own if the request
sets `echo`. It sends nothing over HTTP itself. One answer, one thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from aiohttp import web

from tasuki.engine.messages import Tokens
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.server.auth.limits import ids_bytes, score_bytes, submit_bytes
from tasuki.server.errors import InvalidField
from tasuki.server.openapi.openai_fields import MAX_PROMPTS, OF_COMPLETIONS
from tasuki.server.request_checks import check_prompt_ids, to_tokens
from tasuki.server.text.chat_renderer import ChatRenderer
from tasuki.server.text.grammars.asked_grammar import AskedGrammar, thinking_at_end
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_answer import Ending, GrowingText, Piece, Thinking
from tasuki.server.text.text_codec import TextCodec

from .generation import AskedReply, ServedModel, name_unknown, read_submit, shown_prompts
from .reply import ReplyHead, TextChoice, to_json
from .request_fields import RequestFields, check_account_fields
from .sampling import (
    SHOWN_IDS,
    AskedThinking,
    read_answer_format,
    read_options,
    read_prompt_logprobs,
    read_token_names,
    read_top_logprobs,
)
from .token_details import (
    LogprobColumns,
    ScoredPrompt,
    TokenNames,
    check_scores,
    json_logprob,
    json_prompt_logprobs,
)


@dataclass(frozen=True)
class ShownFields:
    """The request's options for the content of a choice. echo: show the prompt before the answer.
    logprobs: number of likeliest tokens shown with each token's logprob; None: show no logprobs.
    prompt_logprobs: number of likeliest tokens shown at each position of the prompt, in vLLM's
    shape; None: show no logprobs of the prompt."""

    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None

    @property
    def scored_top(self) -> int | None:
        """Return the number of likeliest tokens the engine reports at each position of the prompt.
        Return None if the prompt is not scored."""
        echoed = self.logprobs if self.echo else None
        asked = [top for top in (echoed, self.prompt_logprobs) if top is not None]
        return max(asked, default=None)


# OpenAI's own default for this endpoint.
_DEFAULT_NEW_TOKENS = 16

_PROMPTS = frozenset({str, list})
_HONOURED = frozenset({"n", "best_of", "echo", "prompt_logprobs", *SHOWN_IDS})


def read_completion(model: ServedModel, request: web.Request, fields: RequestFields) -> AskedReply:
    """Read a completion request on any thread. Return its engine requests, options and reply
    choices, for all its prompts. Raises InvalidRequest, PromptTooLong, PermissionDenied,
    HttpRefusal."""
    name_unknown(model, request, fields, OF_COMPLETIONS)
    check_account_fields(fields)
    prompts = read_prompts(fields, model.codec)
    top = read_top_logprobs(fields, "logprobs")
    options = read_options(
        fields,
        model.codec,
        _DEFAULT_NEW_TOKENS,
        model.sampling_defaults,
        top,
        least_new_tokens=0,
        honoured=_HONOURED,
    )
    _check_choices(len(prompts) * options.choices)
    asked = read_answer_format(fields)
    thoughts = _thoughts(asked, options.thinking, prompts, model.codec)
    followed = {thinking: options.placed(asked, thinking, model.codec) for thinking in {*thoughts}}
    options = replace(options, asked=asked)
    shown = _read_shown(fields, top)
    submits = [
        read_submit(
            request,
            fields,
            RenderedPrompt(prompt.tokens),
            followed[thinking],
            model,
            place,
            shown.scored_top,
        )
        for place, (prompt, thinking) in enumerate(zip(prompts, thoughts, strict=True))
    ]
    check_scores("prompt", submits, options.choices)
    scored = [ScoredPrompt(prompt.tokens) for prompt in prompts]
    head = ReplyHead(f"cmpl-{submits[0].request_id}", model.named(fields.text("model")))
    names = read_token_names(fields, model.codec)
    shapes = [
        CompletionReply(
            head,
            names,
            place * options.choices + choice,
            shown,
            prompt.text,
            scores,
            streamed=options.stream,
        )
        for place, (prompt, scores) in enumerate(zip(prompts, scored, strict=True))
        for choice in range(options.choices)
    ]
    taken = scored if shown.scored_top is not None else [None] * len(scored)
    kept = sum(submit_bytes(submit) + score_bytes(submit, options.choices) for submit in submits)
    ids = shown_prompts(fields, submits)
    return AskedReply(submits, options, shapes, taken, kept + ids_bytes(ids), ids)


def _thoughts(
    asked: AskedGrammar | None,
    budget: AskedThinking | None,
    prompts: Sequence["AskedPrompt"],
    codec: TextCodec,
) -> list[Thinking]:
    """Return the thinking state of the answer to each prompt. Return NEVER for all if the request
    has neither a grammar nor a thinking budget, because only these depend on the state."""
    if asked is None and budget is None:
        return [Thinking.NEVER] * len(prompts)
    return [thinking_at_end(prompt.tokens, codec) for prompt in prompts]


def _check_choices(count: int) -> None:
    if count > MAX_PROMPTS:
        raise InvalidField(
            "n", f"of these prompts would be {count} choices: ask for at most {MAX_PROMPTS}"
        )


def _read_shown(fields: RequestFields, top: int) -> ShownFields:
    return ShownFields(
        echo=fields.flag("echo"),
        logprobs=None if fields.get("logprobs") is None else top,
        prompt_logprobs=read_prompt_logprobs(fields),
    )


@dataclass(frozen=True)
class AskedPrompt:
    """One prompt of a completion request. tokens: its token ids, int32 [T]. text: its text; None if
    the request gave token ids."""

    tokens: Tokens
    text: str | None


def read_prompts(fields: RequestFields, codec: TextCodec) -> list[AskedPrompt]:
    """Return the prompts of the field `prompt`: a string, a list of token ids, or a list of at most
    MAX_PROMPTS such strings and lists. Raises InvalidField, PromptTooLong."""
    prompt = fields.get("prompt")
    if not isinstance(prompt, list):
        return [_of_text(prompt, codec)]
    # Not one by one, because a prompt of thousands would hold the interpreter for long.
    kinds = set(map(type, prompt))
    if not kinds & _PROMPTS:
        return [_of_ids(prompt, codec)]
    if len(prompt) > MAX_PROMPTS:
        raise InvalidField("prompt", f"holds {len(prompt)} prompts: send at most {MAX_PROMPTS}")
    if kinds - _PROMPTS:
        raise InvalidField("prompt", "mixes token ids with prompts: send one list of either")
    return [
        _of_ids(item, codec, f"[{index}]") if isinstance(item, list) else _of_text(item, codec)
        for index, item in enumerate(prompt)
    ]


def read_prompt(fields: RequestFields, codec: TextCodec) -> Tokens:
    """Return the token ids of the only prompt, int32 [T]. Raises InvalidField if the request has
    several prompts."""
    prompts = read_prompts(fields, codec)
    if len(prompts) != 1:
        raise InvalidField("prompt", "must be one string or one list of token ids")
    return prompts[0].tokens


def _of_text(prompt: object, codec: TextCodec) -> AskedPrompt:
    if not isinstance(prompt, str):
        raise InvalidField("prompt", "must be a string, a list of token ids, or a list of these")
    return AskedPrompt(ChatRenderer(codec).text("prompt", prompt), prompt)


def _of_ids(ids: list[object], codec: TextCodec, within: str = "") -> AskedPrompt:
    tokens = to_tokens("prompt", ids)
    check_prompt_ids("prompt", tokens, codec.vocab_size, codec.placeholders, within)
    return AskedPrompt(tokens, None)


class CompletionReply:
    whole_kind = chunk_kind = "text_completion"
    complete = may_complete = False
    prompt_in_choice = True

    def __init__(
        self,
        head: ReplyHead,
        names: TokenNames,
        index: int,
        shown: ShownFields,
        prompt_text: str | None,
        prompt: ScoredPrompt,
        *,
        streamed: bool,
    ) -> None:
        """names: rule for naming tokens in logprobs. index: index of the choice in the reply.
        shown: options for the content of the choice. prompt_text: the prompt's text; None if the
        request gave token ids. prompt: the prompt's tokens, and their scores if the engine scores
        it. streamed: keep no text for `whole()`, to bound the memory."""
        self.head = head
        self._index = index
        self._text = TextChoice(self._choice)
        self._names = names
        self._shown = shown
        self._prompt_text = prompt_text
        self._prompt = prompt
        self._begun = False
        self.keeps = not streamed
        self.is_streamed = streamed
        self.plain = None if shown.echo else self._plain
        self._texts = GrowingText()
        self._offset = 0
        self._logprobs = LogprobColumns()

    def opening(self) -> list[bytes]:
        return []

    def push(self, piece: Piece) -> list[bytes]:
        return [*self._begin(), *self._push(piece)]

    def _push(self, piece: Piece) -> list[bytes]:
        if not self.is_streamed:
            self._texts.add(piece.text)
        if self._shown.logprobs is None or piece.token is None:
            return [self._text.holding(piece.text)] if piece.text else []
        token = piece.token
        columns = self._columns()
        self._add(columns, token.token, token.logprob, token.top)
        return [self._with_logprobs(piece.text, columns)]

    @property
    def _plain(self) -> TextChoice | None:
        """Return the value of `plain` (see ReplyShape) once an echoed prompt is written: the text's
        choice for a stream without logprobs, otherwise None."""
        return self._text if self.is_streamed and self._shown.logprobs is None else None

    def _begin(self) -> list[bytes]:
        """Return the choice with the echoed prompt, on the first call only. Return an empty list if
        the prompt is not echoed. The prompt's scores arrive before any token of the answer."""
        if self._begun or not self._shown.echo:
            return []
        self._begun = True
        self.plain = self._plain
        text = self._echoed()
        if not self.is_streamed:
            self._texts.add(text)
        if self._shown.logprobs is None:
            return [self._text.holding(text)] if text else []
        columns = self._columns()
        self._add(columns, int(self._prompt.tokens[0]), None, ())
        for scored in self._prompt.scored(self._shown.logprobs):
            self._add(columns, scored.token, scored.logprob, scored.top)
        return [self._with_logprobs(text, columns)]

    def _echoed(self) -> str:
        if self._prompt_text is not None:
            return self._prompt_text
        tokenizer = self._names.tokenizer
        return "" if tokenizer is None else tokenizer.decode(self._prompt.tokens.tolist())

    def _columns(self) -> LogprobColumns:
        """Return the logprob columns for the next tokens: the whole reply's, or new ones for the
        next event of a stream."""
        return LogprobColumns() if self.is_streamed else self._logprobs

    def _add(
        self, columns: LogprobColumns, token: int, logprob: float | None, top: TopLogprobs
    ) -> None:
        """Add one token with its logprob and the likeliest tokens at its position to `columns`.
        logprob: None for the first token of a prompt."""
        shown = None if logprob is None else json_logprob(logprob)
        alternatives = None if logprob is None else self._alternatives(token, logprob, top)
        columns.add(self._names.name(token), shown, alternatives, self._offset)
        self._offset += len(self._names.text(token))

    def _with_logprobs(self, text: str, columns: LogprobColumns) -> bytes:
        """Return a stream's choice as JSON, with its text and logprobs. Return empty bytes for a
        reply without streaming."""
        if not self.is_streamed:
            return b""
        return msgspec.json.encode({**self._choice(text), "logprobs": columns.json()})

    def finish(self, ending: Ending) -> list[bytes]:
        begun = self._begin()
        return [*begun, to_json({**self._choice(""), "finish_reason": ending.reason.value})]

    def whole(self, ending: Ending) -> dict[str, Any]:
        choice = {
            **self._choice(str(self._texts)),
            "logprobs": None if self._shown.logprobs is None else self._logprobs.json(),
            "finish_reason": ending.reason.value,
        }
        top = self._shown.prompt_logprobs
        if top is not None:
            tokenizer = self._names.tokenizer
            choice["prompt_logprobs"] = json_prompt_logprobs(self._prompt, top, tokenizer)
        return choice

    @property
    def kept_bytes(self) -> int:
        return self._texts.kept_bytes + self._logprobs.kept_bytes

    def beside_choices(self) -> dict[str, Any]:
        return {}

    def reasoning_tokens(self, ending: Ending) -> None:
        """Return None, because completions do not separate reasoning from other text."""

    def _alternatives(self, token: int, logprob: float, top: TopLogprobs) -> dict[str, float]:
        """Return the logprobs of the likeliest tokens at one position, by token name. The chosen
        token is added, so the result may have one entry more than requested. OpenAI does the
        same."""
        return {
            self._names.name(alternative): json_logprob(found)
            for alternative, found in reversed((*top, (token, logprob)))
        }

    def _choice(self, text: str) -> dict[str, Any]:
        return {"index": self._index, "text": text, "logprobs": None, "finish_reason": None}
