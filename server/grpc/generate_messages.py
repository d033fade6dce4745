"""The messages of one request of tasuki.v1: reader of the request, writer of the answer.

Requests: reads requests of tasuki.v1 from proto messages, or rejects them with the field and the
fix. Pure functions of the message and the checkpoint's codec. Slow work runs on the codec's
threads. The engine checks the limits of its arena again.

Answers: converts the engine's answer to GenerateResponse messages for one client. Independent of
sessions and prompts. An early end (a cancelled call, a failed write, a deadline) closes the
engine's iterator, and so aborts the request.
"""

import math
from array import array
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.messages import Targets, Tokens
from tasuki.engine.messages.proto import FINISHED, TARGETS
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import MAX_ALLOWED_TOKENS, MAX_BIASES, SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.proto import inference_pb2 as pb
from tasuki.server.errors import InvalidField, InvalidRequest, PictureUnseen, PromptTooLong
from tasuki.server.pictures.node_pictures import Pictures
from tasuki.server.pictures.part_reader import PictureReader, pictures_read
from tasuki.server.request_checks import (
    MAX_CHOICES,
    MAX_STOP_TOKENS,
    asked_sampling,
    check_length,
    check_prompt_ids,
    check_seconds,
    check_vocabulary,
)
from tasuki.server.text.chat_message import ChatMessage, ShownContent
from tasuki.server.text.chat_renderer import (
    MAX_MESSAGES,
    ChatRenderer,
    placed_budget,
    read_bad_words,
)
from tasuki.server.text.grammars.asked_grammar import (
    AskedGrammar,
    check_followable,
    of_choices,
    of_schema,
    of_text,
    placed,
    thinking_at_end,
)
from tasuki.server.text.rendering.chat_template import RenderedPrompt
from tasuki.server.text.text_codec import TextCodec
from tasuki.server.text.tokenizer import IncrementalDetokenizer
from tasuki.server.unread_answer import AnswerPart

_WITH_DEFAULTS = (
    *("max_new_tokens", "temperature", "top_k", "top_p", "seed", "min_p"),
    *("presence_penalty", "frequency_penalty", "repetition_penalty"),
)
"""Names of fields of the message Sampling with a default in SamplingParams."""
_MOST_NAMED = {"logit_bias": MAX_BIASES, "allowed_token_ids": MAX_ALLOWED_TOKENS}


def read_prompt(
    request: pb.GenerateRequest,
    salt: bytes,
    codec: TextCodec,
    pictures: Pictures | None = None,
) -> RenderedPrompt:
    """Return the request's whole prompt as tokens, rendering messages, with its marks. salt: its
    cache salt in the engine. pictures: reads those of messages; None: they are refused. Raises
    InvalidRequest, PromptTooLong."""
    kind = request.WhichOneof("input")
    if kind == "messages":
        reader = None if pictures is None else pictures.reader()
        messages = read_messages(request.messages, reader)
        rendered = ChatRenderer(codec).conversation(messages, open_answer=True, salt=salt)
        if pictures is not None:
            sent = pictures_read(reader)
            rendered = pictures.placed(rendered, sent, salt, codec.max_tokens)
    else:
        rendered = RenderedPrompt(read_plain_input(request, codec))
    tokens = rendered.tokens
    if not len(tokens):
        raise InvalidRequest(
            "prompt is empty: send text, token_ids or messages with at least one token"
        )
    check_length("prompt", len(tokens), codec)
    asked = read_marks(request.marks, len(tokens))
    return replace(rendered, marks=tuple(sorted({*rendered.marks, *asked})))


def read_plain_input(
    request: pb.GenerateRequest | pb.SessionAppendRequest, codec: TextCodec
) -> Tokens:
    """Return the tokens of the field `text` or `token_ids`, int32 [T]; empty if neither is set."""
    if request.WhichOneof("input") == "text":
        return ChatRenderer(codec).text("text", request.text)
    return read_token_ids("token_ids", request.token_ids.ids, codec)


def read_token_ids(field: str, ids: Sequence[int], codec: TextCodec) -> Tokens:
    """Return a caller's token ids, int32 [T]. Raises InvalidField, PictureMissing."""
    tokens = np.array(ids, dtype=np.int32)
    check_prompt_ids(field, tokens, codec.vocab_size, codec.placeholders)
    return tokens


def read_messages(
    messages: pb.Messages, pictures: PictureReader | None = None
) -> list[ChatMessage]:
    """Return the messages. pictures: collects their pictures; None: refuse them. Raises
    InvalidRequest, PromptTooLong."""
    if not messages.items:
        raise InvalidRequest("messages is empty: send at least one message")
    if len(messages.items) > MAX_MESSAGES:
        raise PromptTooLong(
            f"messages has {len(messages.items)}: send at most {MAX_MESSAGES}, or join some"
        )
    return [
        _message(item, f"messages.items[{index}]", pictures) if item.parts else _plain(item)
        for index, item in enumerate(messages.items)
    ]


def _plain(item: pb.Message) -> ChatMessage:
    return ChatMessage(item.role, item.content)


def _message(item: pb.Message, place: str, pictures: PictureReader | None) -> ChatMessage:
    """Return a message of parts."""
    if item.content:
        raise InvalidField(place, "has both content and parts: send one of them")
    if item.role not in ("user", "tool"):
        raise InvalidField(f"{place}.parts", "need the role user or tool: send content")
    shown = ShownContent()
    for index, part in enumerate(item.parts):
        at = f"{place}.parts[{index}]"
        match part.WhichOneof("part"):
            case "text":
                shown.text(part.text)
            case "picture":
                if pictures is None:
                    raise PictureUnseen(at, "is a picture, and this node sees none: send text")
                pictures.file(part.picture.file, part.picture.detail, at)
                shown.picture()
            case _:
                raise InvalidField(at, "is empty: set text or picture")
    return ChatMessage(item.role, shown.content, pictures=shown.pictures)


def read_marks(marks: Sequence[int], prompt_tokens: int) -> tuple[int, ...]:
    for mark in marks:
        if not 0 < mark <= prompt_tokens:
            raise InvalidRequest(
                f"marks has {mark}, which is outside the prompt: use counts in [1, {prompt_tokens}]"
            )
    if any(left >= right for left, right in pairwise(marks)):
        raise InvalidRequest("marks must ascend: sort them and drop repeats")
    return tuple(marks)


def read_choices(request: pb.GenerateRequest) -> int:
    """Return the number of answers requested for the prompt; 0 means 1."""
    if not 0 <= request.n <= MAX_CHOICES:
        raise InvalidRequest(f"n must be in [0, {MAX_CHOICES}], not {request.n}")
    return max(request.n, 1)


async def with_text_rules(
    params: SamplingParams, sampling: pb.Sampling, prompt: Tokens, codec: TextCodec, line: str
) -> SamplingParams:
    """Return the sampling params with the grammar and the thinking budget of the client's sampling;
    unchanged if it has neither. The grammar has then passed its trial run. line: the caller's queue
    in WorkThreads.run(). Raises InvalidField, Busy."""
    bounds_thinking = sampling.HasField("thinking_token_budget")
    if sampling.WhichOneof("constraint") is None and not bounds_thinking:
        return params

    def read() -> tuple[AskedGrammar | None, Grammar | None, ThinkingBudget | None]:
        asked = _asked_grammar(sampling)
        thinking = thinking_at_end(prompt, codec)
        most = sampling.thinking_token_budget if bounds_thinking else None
        budget = placed_budget("sampling.thinking_token_budget", most, thinking, codec)
        return asked, placed(asked, thinking, codec), budget

    asked, grammar, budget = await codec.work.run(line, read)
    await check_followable(asked, codec, line)
    return replace(params, grammar=grammar, thinking=budget)


def _asked_grammar(sampling: pb.Sampling) -> AskedGrammar | None:
    field = f"sampling.{sampling.WhichOneof('constraint')}"
    match sampling.WhichOneof("constraint"):
        case "json_schema":
            return of_schema(field, sampling.json_schema)
        case "regex":
            return of_text(field, GrammarKind.REGEX, sampling.regex)
        case "grammar":
            return of_text(field, GrammarKind.LARK, sampling.grammar)
        case "choices":
            return of_choices(field, sampling.choices.texts)
        case _:
            return None


def _seconds(given: float, field: str) -> float:
    return check_seconds(field, given, f"seconds, not {given}")


_TARGETS = TARGETS.bounded("targets", first_token=_seconds, per_token=_seconds, answer=_seconds)


def read_targets(targets: pb.Targets) -> Targets:
    """Return the latency targets in the message. Raises InvalidField."""
    return _TARGETS.from_wire(targets)


def read_sampling(
    sampling: pb.Sampling, codec: TextCodec, least_new_tokens: int = 1
) -> SamplingParams:
    """Return the sampling parameters in the message, with defaults for missing fields.
    least_new_tokens: fewest tokens of the answer; 0 if it may be empty. Raises InvalidRequest."""
    if not math.isfinite(sampling.temperature):
        raise InvalidRequest("sampling.temperature must be finite: use 0 for greedy")
    if len(sampling.stop_token_ids) > MAX_STOP_TOKENS:
        raise InvalidRequest(f"sampling.stop_token_ids: send at most {MAX_STOP_TOKENS}")
    stops = np.array(sampling.stop_token_ids, dtype=np.int64)
    check_vocabulary("sampling.stop_token_ids", stops, codec.vocab_size)
    # Checked before the copy: a message may hold millions, and this runs on an event loop.
    for name, most in _MOST_NAMED.items():
        if len(getattr(sampling, name)) > most:
            count = len(getattr(sampling, name))
            raise InvalidRequest(f"sampling.{name} must hold at most {most} tokens, not {count}")
    absent = SamplingParams()

    def given(name: str) -> Any:
        return getattr(sampling if sampling.HasField(name) else absent, name)

    try:
        return asked_sampling(
            codec.vocab_size,
            **{name: given(name) for name in _WITH_DEFAULTS},
            stop_token_ids=tuple(stops.tolist()),
            ignore_eos=sampling.ignore_eos,
            logit_bias=tuple(sorted(sampling.logit_bias.items())),
            min_tokens=sampling.min_tokens,
            bad_words=read_bad_words("sampling.bad_words", sampling.bad_words, codec),
            allowed_token_ids=tuple(sampling.allowed_token_ids),
            top_logprobs=sampling.top_logprobs,
            least_new_tokens=least_new_tokens,
        )
    except ValueError as error:
        raise InvalidRequest(f"sampling.{error}") from error


REQUEST_ID_KEY = "tasuki-request-id"

_SCORES_A_MESSAGE = 1024


@dataclass(frozen=True)
class Answer:
    """A finished answer. token_ids includes the end token if the reason is STOP.

    finished: the last message, not yet written. The client may act on the end once it is written.
    """

    token_ids: "array[int]"
    reason: m.FinishReason
    finished: pb.GenerateResponse


async def write_tokens(
    parts: AsyncGenerator[AnswerPart, None],
    write: Callable[[pb.GenerateResponse], Awaitable[None]],
    detokenizer: IncrementalDetokenizer,
    scores: Sequence[m.PromptScored] = (),
) -> Answer:
    """Write an answer to the client, one message for all tokens waiting at a time. parts: the
    answer from the engine. scores: the prompt's scores, complete before the first part and written
    before it. Raises ServerError from the parts. Return the finished answer; its last message is
    not written."""
    token_ids = array("i")
    unscored = True
    async with aclosing(parts):
        async for part in parts:
            if unscored:
                unscored = False
                for response in _scored(scores):
                    await write(response)
            if isinstance(part, m.Finished):
                rest = detokenizer.finish()
                if rest:
                    await write(pb.GenerateResponse(chunk=pb.TokenChunk(text=rest)))
                finished = pb.GenerateResponse(finished=FINISHED.to_wire(part))
                return Answer(token_ids, part.reason, finished)
            response = pb.GenerateResponse()
            _fill(response.chunk, part, detokenizer)
            token_ids.extend([token.token for token in part])
            await write(response)
    raise AssertionError("an engine's answer ended without Finished")


def _scored(scores: Sequence[m.PromptScored]) -> Iterator[pb.GenerateResponse]:
    """Yield the prompt's scores in messages far below gRPC's size limit."""
    for piece in scores:
        for start in range(0, len(piece), _SCORES_A_MESSAGE):
            some = slice(start, start + _SCORES_A_MESSAGE)
            tops = zip(piece.top_tokens[some], piece.top_logprobs[some], strict=True)
            yield pb.GenerateResponse(
                prompt_logprobs=pb.PromptLogprobs(
                    first=piece.first + start,
                    logprobs=piece.logprobs[some],
                    ranks=piece.ranks[some],
                    top=[
                        pb.TopLogprobs(token_ids=tokens, logprobs=logprobs)
                        for tokens, logprobs in tops
                    ]
                    if piece.top_tokens.shape[1]
                    else None,
                )
            )


def _fill(
    chunk: pb.TokenChunk, tokens: Sequence[m.TokenOut], detokenizer: IncrementalDetokenizer
) -> None:
    """Fill the message with the tokens in place. Constructing a message costs three times as
    much."""
    text = ""
    for token in tokens:
        text += detokenizer.push(token.token)
        chunk.token_ids.append(token.token)
        chunk.logprobs.append(token.logprob)
        chunk.margins.append(token.margin)
    chunk.text = text
    if any(token.top for token in tokens):
        chunk.top.extend([_top(token) for token in tokens])


def _top(token: m.TokenOut) -> pb.TopLogprobs:
    return pb.TopLogprobs(
        token_ids=[alternative for alternative, _ in token.top],
        logprobs=[logprob for _, logprob in token.top],
    )
