"""Details of tokens in replies: counts, ids and logprobs.

usage() counts tokens in OpenAI's shape. `cached_tokens` are prompt tokens taken from the cache, not
computed again. Requests with the header `x-tasuki-hit: 1` get the whole hit breakdown as
`prompt_tokens_details.hybrid`.

TokenIds owns the token ids of one choice and of its prompt, in the shape of vLLM's
`return_token_ids`. Invariant: each id is in one chunk of a stream, in order. The token's text may
come later.

token_logprob() returns the logprobs of a token and of the likeliest tokens at its position, in the
shape of chats and responses. LogprobColumns holds a completion's logprobs in OpenAI's shape, one
list for each kind of value. Invariant: they are kept as JSON, with a fifth of the memory of Python
objects.

ScoredPrompt owns the logprobs of a prompt's tokens, in vLLM's shape. They arrive in segments. One
event loop's thread until all segments have arrived, then any thread.

One answer, one thread; functions are pure.
"""

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import msgspec
from aiohttp import web

from tasuki.engine import messages as m
from tasuki.engine.messages import PromptPicture, PromptScored, Submit, Tokens
from tasuki.model.ops.sampling.params import TopLogprobs
from tasuki.server.errors import InvalidField
from tasuki.server.text.tokenizer import Tokenizer

_PROMPT = "prompt_token_ids"
_ANSWER = "token_ids"


def prompt_ids(tokens: Tokens) -> msgspec.Raw:
    """Return a prompt's token ids as JSON. On any thread; a long prompt takes milliseconds."""
    return msgspec.Raw(msgspec.json.encode(tokens.tolist()))


class TokenIds:
    def __init__(self, prompt: msgspec.Raw, *, streamed: bool) -> None:
        """prompt: token ids of the prompt, as JSON. streamed: drop the answer's ids once a chunk
        has them."""
        self._prompt = prompt
        self._streamed = streamed
        self._ids = array("i")
        """Token ids of the answer; for a stream, only the ids not yet in a chunk."""

    @property
    def kept_bytes(self) -> int:
        return self._ids.itemsize * len(self._ids)

    def add(self, token: int) -> None:
        self._ids.append(token)

    def of_prompt(self) -> dict[str, Any]:
        """Return the field `prompt_token_ids` with the prompt's token ids."""
        return {_PROMPT: self._prompt}

    def of_answer(self) -> dict[str, Any]:
        """Return the field `token_ids` with the answer's token ids; for a stream, with the ids not
        yet returned."""
        ids = self._ids.tolist()
        if self._streamed:
            self._ids = array("i")
        return {_ANSWER: ids}


@dataclass(frozen=True)
class TokenNames:
    """The rule for naming tokens in logprobs. as_ids: vLLM's `return_tokens_as_token_ids`. If True,
    a token is named by its id, otherwise by its text. Different tokens may have equal texts, but
    never equal ids."""

    tokenizer: Tokenizer | None
    as_ids: bool = False

    def name(self, token: int) -> str:
        """Return the token's name. In a text, an incomplete character is U+FFFD. The text of a
        special token is empty."""
        return f"token_id:{token}" if self.as_ids else self.text(token)

    def text(self, token: int) -> str:
        return self.content(token).decode(errors="replace")

    def content(self, token: int) -> bytes:
        return b"" if self.tokenizer is None else self.tokenizer.token_bytes(token)


def token_logprob(token: m.TokenOut, names: TokenNames) -> dict[str, Any]:
    """Return the JSON entry of a token with its logprob, and with the logprobs of the likeliest
    tokens reported by the engine."""
    top = [_entry(other, logprob, names) for other, logprob in token.top]
    return {**_entry(token.token, token.logprob, names), "top_logprobs": top}


def _entry(token: int, logprob: float, names: TokenNames) -> dict[str, Any]:
    content = list(names.content(token))
    return {"token": names.name(token), "logprob": json_logprob(logprob), "bytes": content}


def json_logprob(logprob: float) -> float:
    """Return the logprob, or -9999.0 if it is not finite. JSON has no NaN and no infinity; OpenAI
    uses -9999.0 for an impossible token."""
    return logprob if math.isfinite(logprob) else -9999.0


_NAMES = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
_encode = msgspec.json.Encoder().encode


class LogprobColumns:
    def __init__(self) -> None:
        self._columns = (bytearray(), bytearray(), bytearray(), bytearray())

    @property
    def kept_bytes(self) -> int:
        return sum(map(len, self._columns))

    def add(
        self,
        text: str,
        logprob: float | None,
        alternatives: dict[str, float] | None,
        offset: int,
    ) -> None:
        """Add a token to the columns. text: its name. logprob: its logprob; None for the first
        token of a prompt. alternatives: logprobs of the likeliest tokens by name. offset: position
        of the token's text, in characters."""
        values: tuple[Any, ...] = (text, logprob, alternatives, offset)
        for column, value in zip(self._columns, values, strict=True):
            column += _encode(value)
            column += b","

    def json(self) -> msgspec.Raw:
        """Return the logprobs as a JSON object with one list for each kind of value."""
        lists = [
            b'"%b":[' % name.encode() + column.removesuffix(b",") + b"]"
            for name, column in zip(_NAMES, self._columns, strict=True)
        ]
        return msgspec.Raw(b"{%b}" % b",".join(lists))


MAX_REPLY_SCORES = 1 << 20
"""Largest number of prompt logprobs in one reply. They take about 80 MB of JSON."""

_LEAST = -9999.0


@dataclass(frozen=True)
class ScoredToken:
    """A token of the prompt with its score. rank: number of at least equally likely tokens, itself
    included. top: likeliest tokens at its position with their logprobs; the token itself may not be
    among them."""

    token: int
    logprob: float
    rank: int
    top: TopLogprobs


class ScoredPrompt:
    def __init__(self, tokens: Tokens, pictures: Sequence[PromptPicture] = ()) -> None:
        """tokens: token ids of the prompt, int32 [T]. pictures: those of the prompt, whose
        placeholders are not scored."""
        self.tokens = tokens
        self._runs = [one.run for one in pictures]
        self._pieces: list[PromptScored] = []

    def take(self, piece: PromptScored) -> None:
        """Add the scores of the next segment of the prompt. Segments come in order."""
        self._pieces.append(piece)

    def unscored(self) -> frozenset[int]:
        """Return the places of all placeholders of pictures."""
        return frozenset(place for run in self._runs for place in range(run.start, run.end))

    def scored(self, top: int) -> Iterator[ScoredToken]:
        """Yield the prompt's tokens with their scores, from the second token on. top: largest
        number of likeliest tokens in each score."""
        for piece in self._pieces:
            places = range(piece.first, piece.first + len(piece))
            columns = (
                self.tokens[places.start : places.stop].tolist(),
                piece.logprobs.tolist(),
                piece.ranks.tolist(),
                piece.top_tokens[:, :top].tolist(),
                piece.top_logprobs[:, :top].tolist(),
            )
            for token, logprob, rank, tokens, logprobs in zip(*columns, strict=True):
                yield ScoredToken(token, logprob, rank, tuple(zip(tokens, logprobs, strict=True)))


def check_scores(field: str, submits: Sequence[Submit], written: int) -> None:
    """Raise InvalidField if a reply would hold more than MAX_REPLY_SCORES logprobs of prompts.

    field: name of the field in the error. written: number of times the reply repeats the logprobs
    of each prompt.
    """
    numbers = sum(
        len(submit.prompt) * (submit.prompt_logprobs + 1)
        for submit in submits
        if submit.prompt_logprobs is not None
    )
    if numbers * written > MAX_REPLY_SCORES:
        raise InvalidField(
            field,
            f"would have {numbers * written} logprobs, and a reply may have {MAX_REPLY_SCORES}: "
            "ask for fewer, or send fewer prompts",
        )


def json_prompt_logprobs(
    prompt: ScoredPrompt, top: int, tokenizer: Tokenizer | None
) -> msgspec.Raw:
    """Return vLLM's `prompt_logprobs` as JSON: for each position, an object from token id to its
    logprob, rank and text. The first position has null, because no token precedes it. Those inside
    pictures have null, because no text stands there. top: largest number of likeliest tokens at
    each position. tokenizer: None leaves texts empty.

    Each position is encoded before the next is made. Python objects would take several times the
    memory.
    """
    written = bytearray(b"[null")
    unscored = prompt.unscored()
    for place, scored in enumerate(prompt.scored(top), 1):
        written += b","
        found = None if place in unscored else _place(scored, tokenizer)
        written += msgspec.json.encode(found)
    written += b"]"
    return msgspec.Raw(written)


def _place(scored: ScoredToken, tokenizer: Tokenizer | None) -> dict[str, Any]:
    found = {str(scored.token): _prompt_entry(scored.token, scored.logprob, scored.rank, tokenizer)}
    for rank, (token, logprob) in enumerate(scored.top, 1):
        found.setdefault(str(token), _prompt_entry(token, logprob, rank, tokenizer))
    return found


def _prompt_entry(
    token: int, logprob: float, rank: int, tokenizer: Tokenizer | None
) -> dict[str, Any]:
    text = "" if tokenizer is None else tokenizer.token_bytes(token).decode(errors="replace")
    # JSON has no infinity.
    return {"logprob": max(logprob, _LEAST), "rank": rank, "decoded_token": text}


HIT_HEADER = "x-tasuki-hit"


def wants_hit(request: web.Request) -> bool:
    return request.headers.get(HIT_HEADER) == "1"


def usage(
    prompts: Sequence[m.Usage],
    completion: int,
    reasoning_tokens: int | None,
    answers: Sequence[m.Usage],
    *,
    with_hit: bool,
) -> dict[str, Any]:
    """Return the `usage` of a reply. prompts: usage of one answer to each prompt. completion:
    number of tokens of all answers. reasoning_tokens: number of reasoning tokens of all answers;
    None for answers without reasoning. answers: usage of each answer. with_hit: add the breakdown
    of the cache hit if the reply has only one prompt."""
    hits = [prompt.hit for prompt in prompts if prompt.hit is not None]
    details: dict[str, Any] = {"cached_tokens": sum(hit.usable_tokens for hit in hits)}
    details |= picture_tokens(prompts)
    if with_hit and len(prompts) == len(hits) == 1:
        details["hybrid"] = hybrid_hit(hits[0], prompts[0].pictures)
    prompt = sum(prompt.prompt_tokens for prompt in prompts)
    shown: dict[str, Any] = {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": details,
    }
    completion_details: dict[str, Any] = _predicted(answers) | _drafted(answers)
    if reasoning_tokens is not None:
        completion_details["reasoning_tokens"] = reasoning_tokens
    if completion_details:
        shown["completion_tokens_details"] = completion_details
    return shown


def picture_tokens(prompts: Sequence[m.Usage]) -> dict[str, int]:
    """Return the prompts' tokens of pictures by kind, under the names of vLLM and SGLang. They are
    among the prompt's tokens. No fields for text alone."""
    reports = [prompt.pictures for prompt in prompts if prompt.pictures is not None]
    counts = {
        "image_tokens": sum(report.image_tokens for report in reports),
        "video_tokens": sum(report.video_tokens for report in reports),
    }
    return {name: tokens for name, tokens in counts.items() if tokens}


def usage_so_far(prompt: int, completion: int) -> dict[str, int]:
    """Return the `usage` of an unfinished answer. prompt, completion: number of tokens so far."""
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total}


def _predicted(answers: Sequence[m.Usage]) -> dict[str, int]:
    """Return the `usage` fields for the accepted and rejected tokens of the request's `prediction`.
    Return no fields without a prediction."""
    given = [answer for answer in answers if answer.accepted_prediction_tokens is not None]
    if not given:
        return {}
    return {
        field: sum(getattr(answer, field) for answer in given)
        for field in ("accepted_prediction_tokens", "rejected_prediction_tokens")
    }


def _drafted(answers: Sequence[m.Usage]) -> dict[str, Any]:
    """Return the `usage` fields for drafted and accepted tokens (counts), by drafter and by
    position in a forward's drafts. Return no fields without drafts."""
    found: dict[str, dict[str, list[int]]] = {}
    for use in (use for answer in answers for use in answer.drafts):
        of_source = found.setdefault(use.source, {"drafted": [], "accepted": []})
        for name, counts in (("drafted", use.drafted), ("accepted", use.accepted)):
            sums = zip_longest(of_source[name], counts, fillvalue=0)
            of_source[name] = [sum(pair) for pair in sums]
    return {"drafts": found} if found else {}


def hybrid_hit(hit: m.HitBreakdown, pictures: m.PicturesReport | None) -> dict[str, Any]:
    """Return the breakdown of a cache hit, in tokens. lost: tokens not usable from the cache,
    except new ones. reason: the most frequent cause of lost tokens. loaded: usable tokens loaded
    from each tier below the arena; absent if none. pictures: those of the prompt; None: it has
    none, and the breakdown has no fields of them."""
    causes = {cause: count for cause, count in hit.causes.items() if count}
    changed_at = hit.template_changed_at
    lost = {cause: count for cause, count in causes.items() if cause != "new"}
    return {
        "kv_match": hit.kv_tokens,
        "usable": hit.usable_tokens,
        "lost": sum(lost.values()),
        "reason": max(lost, key=lost.__getitem__) if lost else None,
        "causes": causes,
        "checkpoint_source": hit.checkpoint_source,
        **({} if changed_at is None else {"template_changed_at": changed_at}),
        **({"loaded": hit.loaded} if hit.loaded else {}),
        **({} if pictures is None else _pictures_hit(pictures)),
    }


def _pictures_hit(report: m.PicturesReport) -> dict[str, Any]:
    """Return the fields of a hit about pictures: their tokens, those among the usable ones, and the
    number of pictures by outcome."""
    outcomes = Counter(picture.outcome.value for picture in report.each)
    return {
        "image_tokens": report.image_tokens + report.video_tokens,
        "image_tokens_usable": report.usable_tokens,
        "pictures": dict(outcomes),
    }
