"""The common part of chats and completions over HTTP: the served model, and the steps from a prompt
to a reply.

Depends neither on chat messages nor on JSON shapes of replies. One event loop's thread.
"""

import hashlib
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

import msgspec
from aiohttp import web

from tasuki.engine.messages import Submit
from tasuki.server.auth.limits import HeldBytes, Hold
from tasuki.server.auth.tenants import salt_of
from tasuki.server.engine_client import Answering
from tasuki.server.errors import InvalidField, PictureNotFetched, PictureTooLarge, PictureUnseen
from tasuki.server.http.access import http_caller, http_request_context
from tasuki.server.http.bounded_reading import read_body
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.http.headers import add_header, http_request_id
from tasuki.server.http.reply import AnswerWriter, Choice, StreamedReply, WholeReply
from tasuki.server.pictures.fetching.fetcher import PictureFetcher
from tasuki.server.pictures.fetching.request_addresses import (
    Fetched,
    PicturesWanted,
    RequestAddresses,
    fetch_all,
)
from tasuki.server.pictures.node_pictures import Pictures
from tasuki.server.pictures.part_reader import PictureReader
from tasuki.server.pictures.sent_picture import SentPicture
from tasuki.server.request_checks import (
    check_answer_fits,
    check_length,
    check_priority,
    choice_id,
    forks_of,
    read_targets,
)
from tasuki.server.text.grammars.asked_grammar import check_followable
from tasuki.server.text.parsing.answer_parser import AnswerParser
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.stop_strings import NO_STOPS, StopPlace, StopRule, StopStrings
from tasuki.server.text.text_answer import TextAnswer, Thinking
from tasuki.server.text.text_codec import TextCodec

from .reply import ChunkedReply, ReplyShape
from .request_fields import RequestFields, check_is_json, read_fields
from .sampling import OPENAI_DEFAULTS, AnswerOptions, SamplingDefaults
from .token_details import ScoredPrompt, TokenIds, prompt_ids, wants_hit

log = logging.getLogger(__name__)

_MOST = 8
"""Largest number of field names in the header for unknown fields."""
_LONGEST = 64


def shown_names(names: Sequence[str]) -> str:
    """Return names joined by commas, for a header and the log. Only the first few short ASCII
    identifiers are included. Return "?" if there is none."""
    plain = [name for name in names if name.isidentifier() and name.isascii()]
    return ", ".join(name for name in plain[:_MOST] if len(name) <= _LONGEST) or "?"


Result = TypeVar("Result")

UNKNOWN_HEADER = "x-tasuki-unknown-fields"
SESSION_KEY = "x-session-id"
"""Name of the conversation's id, as an HTTP header or as a field of `metadata`."""
IGNORED_FORMATS_HEADER = "x-tasuki-ignored-formats"
ANY_NAME = "*"
# Every event of a stream repeats the model name of its request.
MAX_NAME = 256
_PROMPTS = ("messages", "prompt", "input")
_LIMITS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
"""Request fields for the largest number of new tokens. The first one given is named in errors."""


@dataclass(frozen=True)
class ServedModel:
    """The model served by the HTTP routes, and their options. created: Unix time in seconds.
    max_tokens: limit for prompt and answer together, set by the model and the arena.
    sampling_defaults: values for sampling fields absent in a request. stop_place: part of an answer
    searched for stop strings in chats and Messages. hides_unasked_thinking: disable thinking in
    Messages requests without the field `thinking`. aliases: further model names accepted from
    clients; ANY_NAME accepts any name. whole_calls: hold back a tool call until it is complete.
    held: bytes of memory held by the requests of all routes. strict_fields: reject unknown fields
    of chats and completions. pictures: reads those of chats; None: they are refused. fetcher:
    fetches those given by address; None: they are refused."""

    name: str
    created: int
    max_tokens: int
    codec: TextCodec
    sampling_defaults: SamplingDefaults = OPENAI_DEFAULTS
    stop_place: StopPlace = StopPlace.ANSWER
    hides_unasked_thinking: bool = True
    aliases: tuple[str, ...] = ()
    whole_calls: bool = False
    held: HeldBytes = field(default_factory=HeldBytes, repr=False, compare=False)
    strict_fields: bool = False
    pictures: Pictures | None = None
    fetcher: PictureFetcher | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the model names for GET /v1/models: the own name, and the aliases except
        ANY_NAME."""
        return (self.name, *(alias for alias in self.aliases if alias != ANY_NAME))

    def named(self, asked: str | None) -> str:
        """Return the model name for the reply: the requested name, or the own name if the request
        has none. Raises HttpRefusal for a name this node does not serve."""
        if asked is None:
            return self.name
        if asked in self.names or (ANY_NAME in self.aliases and len(asked) <= MAX_NAME):
            return asked
        raise HttpRefusal(
            404, "model_not_found", f"model {asked!r:.200} is not served here: use {self.name!r}"
        )

    @property
    def sees(self) -> bool:
        """Return True if requests may have pictures."""
        return self.pictures is not None and self.pictures.sees

    def picture_reader(
        self, fields: RequestFields, before: Sequence[SentPicture] = ()
    ) -> PictureReader | None:
        """Return the reader of one request's pictures; None to refuse them. before: those of the
        conversation's stored part."""
        if self.pictures is None:
            return None
        fetcher = self.fetcher
        addresses = None if fetcher is None else RequestAddresses(fetcher.hosts, fields.fetched)
        return self.pictures.reader(before, addresses)

    def with_pictures(
        self, rendered: RenderedPrompt, sent: Sequence[SentPicture], salt: bytes
    ) -> RenderedPrompt:
        """Return the prompt with the pictures of its messages. sent: in the order of the messages.
        salt: of the prompt. Raises InvalidField, PictureTooLarge, PromptTooLong, NotServedHere."""
        if not sent:
            return rendered
        if self.pictures is None:
            raise PictureUnseen(sent[0].place, "is a picture, and this node sees none: send text")
        return self.pictures.placed(rendered, sent, salt, self.codec.max_tokens)

    def parser(
        self,
        thinking: Thinking,
        tools: Sequence[Mapping[str, Any]],
        parallel_calls: bool,
        stops: StopRule = NO_STOPS,
        thinking_tokens: int | None = None,
    ) -> AnswerParser:
        """Return the parser of one answer. thinking: thinking state at the end of the prompt. The
        other arguments are those of AnswerParser."""
        return AnswerParser(
            thinking,
            tools,
            parallel_calls=parallel_calls,
            whole_calls=self.whole_calls,
            stops=stops,
            thinking_tokens=thinking_tokens,
        )

    def hold(self, request: web.Request) -> AbstractContextManager[Hold]:
        """Return a context manager to count the bytes of memory held by the request. The count
        starts at zero and ends with the `with` block."""
        return self.held.hold(http_caller(request))

    async def read(
        self, request: web.Request, hold: Hold, read: Callable[[RequestFields], Result]
    ) -> Result:
        """Read the body of an HTTP request. Return the result of `read` for its JSON object. `read`
        runs on one of the codec's threads. Its exceptions are raised here.

        hold: counts the body's bytes from now on, until the caller sets the size of the result.
        Raises HttpRefusal, also for a model not served here; InvalidRequest, Busy.
        """
        check_is_json(request)
        body = await read_body(request, hold)

        def of_this_model(fields: RequestFields) -> Result:
            self.named(fields.text("model"))
            return read(fields)

        return await self.take_apart(request, hold, body, of_this_model)

    async def take_apart(
        self,
        request: web.Request,
        hold: Hold,
        body: bytearray,
        read: Callable[[RequestFields], Result],
    ) -> Result:
        """Return the result of `read` for a body already received, without a check of its model
        name. Empties `body`. `read` runs on one of the codec's threads, a second time with the
        contents of addresses. hold: counts the body's bytes, and theirs."""

        def work() -> "Result | _Unfetched":
            fields = read_fields(body)
            try:
                return read(fields)
            except PicturesWanted as wanted:
                return _Unfetched(fields, wanted)

        try:
            line = http_request_context(request).line
            found = await self.codec.work.run(line, work, hold.size)
            if not isinstance(found, _Unfetched):
                return found
            fetched = await self._fetched(found.wanted, line, hold)
            again = partial(read, found.fields.with_fetched(fetched))
            return await self.codec.work.run(line, again, hold.size)
        finally:
            # This frame stays alive with the error of an abandoned call, so drop the bytes.
            body.clear()

    async def _fetched(self, wanted: PicturesWanted, line: str, hold: Hold) -> Fetched:
        if self.fetcher is None or self.pictures is None:
            raise wanted
        most, counter = self.pictures.limits.each.most_bytes, self.pictures.counter
        try:
            return await fetch_all(self.fetcher, wanted, line, most, hold, counter.fetched)
        except (PictureNotFetched, PictureTooLarge):
            counter.refuse()
            raise


def read_submit(
    request: web.Request,
    fields: RequestFields,
    prompt: RenderedPrompt,
    options: AnswerOptions,
    model: ServedModel,
    place: int = 0,
    prompt_logprobs: int | None = None,
) -> Submit:
    """Return the engine request for one prompt. place: index of the prompt among the request's
    prompts. prompt_logprobs: number of likeliest tokens reported at each position of the prompt;
    None: do not score it. Routing hints of the request are checked, and used only by gateways. No
    answer depends on them. Raises InvalidRequest, PromptTooLong, PermissionDenied."""
    if not len(prompt.tokens):
        raise InvalidField("prompt", "is empty: send at least one token")
    named = next((name for name in _PROMPTS if fields.get(name) is not None), "prompt")
    check_length(named, len(prompt.tokens), model.codec)
    limits = {name: fields.integer(name) for name in _LIMITS}
    new_tokens = options.sampling.max_new_tokens
    check_answer_fits(limits, len(prompt.tokens), new_tokens, model.max_tokens)
    tenant = http_request_context(request).tenant
    first = place * options.choices
    choices, own_id = range(first, first + options.choices), http_request_id(request)
    return Submit(
        request_id=choice_id(own_id, first),
        prompt=prompt.tokens,
        sampling=options.sampling,
        salt=prompt_salt(request, fields),
        marks=prompt.marks,
        message_end=prompt.message_end,
        changed=prompt.changed,
        session=_session(request, fields, tenant),
        priority=check_priority(fields.integer("priority") or 0),
        targets=read_targets(lambda name: request.headers.getall(name, ())),
        prompt_logprobs=prompt_logprobs,
        forks=forks_of(own_id, choices, options.sampling.seed),
        pictures=prompt.pictures,
    )


def name_unknown(
    model: ServedModel, request: web.Request, fields: RequestFields, known: Collection[str]
) -> None:
    """Report the request's fields outside `known` in a header of the reply and in the log. They do
    not change the answer. Raises InvalidField for such a field if the model is set to
    `strict_fields`."""
    if model.strict_fields:
        fields.refuse_unknown(known)
    names = fields.unknown(known)
    if not names:
        return
    shown = shown_names(names)
    add_header(request, UNKNOWN_HEADER, shown)
    log.info("%s: fields that are not known here: %s", http_request_id(request), shown)


def shown_prompts(fields: RequestFields, submits: Sequence[Submit]) -> list[msgspec.Raw] | None:
    """Return the token ids of each prompt as JSON, for the reply. Return None if the request does
    not set `return_token_ids`. Raises InvalidField."""
    if not fields.flag("return_token_ids"):
        return None
    return [prompt_ids(submit.prompt) for submit in submits]


def prompt_salt(request: web.Request, fields: RequestFields) -> bytes:
    """Return the cache salt made from the tenant and the request's `cache_salt`. Only prompts with
    equal salts share cached prefixes. Raises InvalidRequest, PermissionDenied."""
    tenant = http_request_context(request).tenant
    return salt_of(tenant, (fields.text("cache_salt") or "").encode())


def _session(request: web.Request, fields: RequestFields, tenant: str | None) -> str | None:
    """Return a hash of the conversation's id, for operators; None without an id. Equal hashes mean
    the same conversation. The client's id stays hidden, and tenants never share a hash. The id is
    the first given of: the header, the field of `metadata`, `prompt_cache_key`."""
    key = fields.text("prompt_cache_key")
    in_body = fields.fields("metadata").text(SESSION_KEY)
    named = request.headers.get(SESSION_KEY) or in_body or key
    if not named:
        return None
    # A header's bytes need not be text.
    written = named.encode(errors="surrogateescape")
    return f"key {hashlib.sha256(salt_of(tenant, b'') + written).hexdigest()[:8]}"


@dataclass(frozen=True)
class _Unfetched:
    """A request that is read again with its pictures' contents."""

    fields: RequestFields
    wanted: PicturesWanted


@dataclass(frozen=True)
class AskedReply:
    """A parsed request, its engine requests, and the choices of its reply. submits: one engine
    request for each prompt. shapes: one for each choice, all choices of a prompt together, in the
    order of the prompts. scored: receiver of each prompt's scores; None for a prompt without
    scores. kept_bytes: bytes of memory held by all these until the reply ends. prompt_ids: token
    ids of each prompt as JSON; None if the reply shows no token ids."""

    submits: Sequence[Submit]
    options: AnswerOptions
    shapes: Sequence[ReplyShape]
    scored: Sequence[ScoredPrompt | None]
    kept_bytes: int
    prompt_ids: Sequence[msgspec.Raw] | None = None

    def token_ids(self) -> list[TokenIds] | None:
        """Return the collector of token ids for each choice, or None if the reply does not show
        token ids."""
        if self.prompt_ids is None:
            return None
        choices, streamed = self.options.choices, self.options.stream
        places = range(len(self.shapes))
        return [TokenIds(self.prompt_ids[n // choices], streamed=streamed) for n in places]


ReadRequest = Callable[[ServedModel, web.Request, RequestFields], AskedReply]


def answering(
    engine: Answering, model: ServedModel, read: ReadRequest
) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    """Return the HTTP handler of a route. `read` parses the request. The handler sends the engine's
    answer as one JSON body or as a stream of events."""

    async def handle(request: web.Request) -> web.StreamResponse:
        with model.hold(request) as hold:
            asked = await model.read(request, hold, partial(read, model, request))
            hold.resize(asked.kept_bytes)
            prompts = [len(submit.prompt) for submit in asked.submits]
            reply = ChunkedReply(
                asked.shapes,
                include_usage=asked.options.include_usage,
                with_hit=wants_hit(request),
                choices=asked.options.choices,
                prompt_tokens=prompts if asked.options.continuous_usage else None,
                ids=asked.token_ids(),
            )
            return await answer_all(
                *(engine, model, request, hold),
                *(asked.submits, asked.options, reply.writers(), asked.scored),
            )

    return handle


async def answer_with(
    engine: Answering,
    model: ServedModel,
    request: web.Request,
    hold: Hold,
    submit: Submit,
    options: AnswerOptions,
    writer: AnswerWriter,
) -> web.StreamResponse:
    """Send the request to the engine, and its answer to the client, as one JSON body or as a stream
    of events. writer: writes the answer in the API's shape. Return the HTTP reply."""
    return await answer_all(engine, model, request, hold, [submit], options, [writer], [None])


async def answer_all(
    engine: Answering,
    model: ServedModel,
    request: web.Request,
    hold: Hold,
    submits: Sequence[Submit],
    options: AnswerOptions,
    writers: Sequence[AnswerWriter],
    scored: Sequence[ScoredPrompt | None],
) -> web.StreamResponse:
    """Send all prompts of a request to the engine, and one reply with all choices to the client.
    submits: one engine request for each prompt. writers: one for each choice. scored: receiver of
    each prompt's scores; None for a prompt without scores. Return the HTTP reply."""
    request_context = http_request_context(request)
    choices = await asked_choices(engine, model, request, hold, submits, options, writers)
    # Writing thousands of scores would hold the loop for too long.
    work = partial(model.codec.work.run, request_context.line) if any(scored) else None
    reply: StreamedReply | WholeReply = (
        StreamedReply(request, choices) if options.stream else WholeReply(request, choices, work)
    )
    scores = [None if prompt is None else prompt.take for prompt in scored]
    async with engine.generate_all(submits, request_context, reply.sinks, scores) as answers:
        return await reply.send(answers)


async def asked_choices(
    engine: Answering,
    model: ServedModel,
    request: web.Request,
    hold: Hold,
    submits: Sequence[Submit],
    options: AnswerOptions,
    writers: Sequence[AnswerWriter],
) -> list[Choice]:
    """Return the choices of a reply, in the order of `writers`: each decodes the text of one answer
    for its writer. Name the ignored formats of the grammar in a header of the reply. Raises
    InvalidRequest if the answers' grammar cannot be compiled."""
    request_context = http_request_context(request)
    codec = model.codec
    await check_followable(options.asked, codec, request_context.line)
    if options.asked is not None and options.asked.ignored:
        add_header(request, IGNORED_FORMATS_HEADER, ", ".join(options.asked.ignored))
    names = [name for submit in submits for name in submit.answer_ids]
    return [
        Choice(
            TextAnswer(
                codec.naming_detokenizer() if options.names_special else codec.detokenizer(),
                StopStrings(options.stops, is_kept=options.stop_is_kept),
                partial(engine.abort, name, request_context.caller),
                options.sampling.min_tokens,
            ),
            writer,
            hold,
        )
        for name, writer in zip(names, writers, strict=True)
    ]
