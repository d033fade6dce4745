"""The common part of OpenAI-shaped replies: the fields of every reply, and the chunks of a stream
as server-sent events.

ReplyShape: the interface of the choices of chats and completions. One answer, one thread.

ChunkEvents encodes only the changing part of each event. Immutable. Invariant: the bytes of an
event equal `to_json` of its whole body.
"""

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from tasuki.server.http.errors import error_body
from tasuki.server.http.reply import KEEP_ALIVE_COMMENT, BodyOf
from tasuki.server.text.text_answer import Ending, Piece

from .token_details import TokenIds, usage, usage_so_far

DONE = b"data: [DONE]\n\n"

_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))
# All encoders give the same for a string alone; this one is the fastest.
_text_to_json = msgspec.json.Encoder().encode


def to_json(value: Any) -> bytes:
    return _ENCODER.encode(value).encode()


def event(body: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % to_json(body)


def with_fields(choice: bytes, fields: Mapping[str, Any]) -> bytes:
    """Return a JSON object with further fields at its end. choice: the object as JSON bytes.
    fields: the added fields; all their texts are ASCII."""
    return b"%b,%b" % (choice[:-1], msgspec.json.encode(fields)[1:])


class TextChoice:
    """A stream choice prepared as JSON bytes. Only a text is inserted into it, at one or more
    positions."""

    def __init__(self, choice: BodyOf) -> None:
        """choice: function from a text to the choice's object. REQUIRES: the choice for an empty
        text has no other empty string."""
        self.around = to_json(choice("")).split(b'""')

    def holding(self, text: str) -> bytes:
        return _text_to_json(text).join(self.around)


class ChunkEvents:
    """Encoder of one stream's events. Each event is a chunk with one choice."""

    def __init__(self, before: dict[str, Any], after: dict[str, Any]) -> None:
        """before, after: fields of every chunk before and after its `choices`."""
        self._before = b"data: " + to_json({**before, "choices": []}).removesuffix(b"]}")
        self._after = to_json({"choices": [], **after}).removeprefix(b'{"choices":[') + b"\n\n"

    def of(self, choices: Sequence[bytes]) -> bytes:
        """Return the events of several chunks, joined. choices: the choice of each chunk, as
        JSON."""
        return b"".join([b"%b%b%b" % (self._before, choice, self._after) for choice in choices])

    def of_each(self, choices: Sequence[bytes], after: Mapping[str, Any]) -> bytes:
        """Return the events of several chunks like `of`, with the fields `after` in place of the
        usual fields after the choices. All texts in these fields are ASCII."""
        fields = b",%b" % msgspec.json.encode(after)[1:] if after else b"}"
        return b"".join([b"%b%b]%b\n\n" % (self._before, one, fields) for one in choices])

    def of_text(self, choice: TextChoice) -> Callable[[str], bytes]:
        """Return a function from a text to the event of `choice` with the text. It gives the same
        bytes as `of` at half the cost."""
        around = list(choice.around)
        around[0] = self._before + around[0]
        around[-1] += self._after
        return lambda text: _text_to_json(text).join(around)


@dataclass(frozen=True)
class ReplyHead:
    """The fields common to a reply and all its chunks. created: Unix time in seconds."""

    id: str
    model: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        """Return the first fields of a reply or of a chunk. kind: value of the field `object`."""
        return {"id": self.id, "object": kind, "created": self.created, "model": self.model}


class ReplyShape(Protocol):
    """The receiver of one answer, in order, for one choice of a reply. `opening`, `push` and
    `finish` return choices as JSON, each for one chunk. whole_kind, chunk_kind: value of `object`
    in a whole reply and in a chunk. is_streamed: chunks reach the client. complete: the answer
    needs no more text. may_complete, keeps: fields of AnswerWriter. plain: None at first; a
    TextChoice once every later `push` only fills this choice with its text. prompt_in_choice: True
    if the prompt's token ids are a field of the choice, False if of the reply."""

    head: ReplyHead
    whole_kind: str
    chunk_kind: str
    may_complete: bool
    keeps: bool
    is_streamed: bool
    plain: TextChoice | None
    prompt_in_choice: bool

    @property
    def complete(self) -> bool: ...

    @property
    def kept_bytes(self) -> int:
        """Return the memory held for the answer so far, in bytes."""
        ...

    def opening(self) -> list[bytes]: ...

    def push(self, piece: Piece) -> list[bytes]: ...

    def finish(self, ending: Ending) -> list[bytes]: ...

    def whole(self, ending: Ending) -> dict[str, Any]:
        """Return the choice for a reply without streaming. REQUIRES: every piece of the answer was
        pushed."""
        ...

    def beside_choices(self) -> dict[str, Any]:
        """Return further top-level fields for a reply without streaming. REQUIRES: every piece of
        the answer was pushed."""
        ...

    def reasoning_tokens(self, ending: Ending) -> int | None:
        """Return the answer's number of reasoning tokens, or None for a kind of answer without
        reasoning. REQUIRES: every piece of the answer was pushed."""
        ...


class ChunkedReply:
    """One reply with one or more choices. Each chunk of a stream holds one choice; the line [DONE]
    ends the stream. The reply refers to no writer, so the memory of a long answer is freed with its
    writer."""

    def __init__(
        self,
        shapes: Sequence[ReplyShape],
        *,
        include_usage: bool,
        with_hit: bool,
        choices: int = 1,
        prompt_tokens: Sequence[int] | None = None,
        ids: Sequence[TokenIds] | None = None,
    ) -> None:
        """shapes: the choices, all with the same head. include_usage: end a stream with a chunk of
        `usage`. with_hit: `usage` has the breakdown of the cache hit. choices: number of choices
        for each prompt; a prompt's tokens count once in `usage`. prompt_tokens: length of each
        prompt in tokens, if every chunk of a stream has `usage`; else None. ids: collector of token
        ids for each choice; None if the reply shows no ids."""
        self.head = shapes[0].head
        self._shapes = tuple(shapes)
        self._include_usage = include_usage
        self._with_hit = with_hit
        self._choices = choices
        self._prompt_tokens = prompt_tokens
        self._ids = ids
        self._fields = self.head.fields(shapes[0].chunk_kind)
        self._endings: dict[int, Ending] = {}
        """Endings of the answers already finished, by index of the choice."""

    def writers(self) -> list["ChoiceWriter"]:
        """Return an AnswerWriter for each choice, in order."""
        after = {"usage": None} if self._include_usage else {}
        chunks = ChunkEvents(self._fields, after)
        prompts, ids = self._prompt_tokens, self._ids
        return [
            ChoiceWriter(
                *(self, number, shape, chunks, after),
                None if prompts is None else prompts[number // self._choices],
                None if ids is None else ids[number],
            )
            for number, shape in enumerate(self._shapes)
        ]

    def end(self, number: int, ending: Ending) -> bytes:
        """Record the end of choice `number`. Return the bytes ending the stream if no other choice
        continues; otherwise return no bytes."""
        self._endings[number] = ending
        if len(self._endings) < len(self._shapes):
            return b""
        if not self._include_usage:
            return DONE
        last = {"choices": [], "usage": self._usage(), **self._versions()}
        return event({**self._fields, **last}) + DONE

    def whole(self) -> dict[str, Any]:
        """Return the body of a reply without streaming. REQUIRES: every choice has ended."""
        return {
            **self.head.fields(self._shapes[0].whole_kind),
            "choices": self._whole_choices(),
            "usage": self._usage(),
            **self._shapes[0].beside_choices(),
            **self._prompt_ids(),
            **self._versions(),
        }

    def _versions(self) -> dict[str, Any]:
        """Return the weights' version at the last token, as SGLang does, and the versions of each
        choice: [first token, version] for each run. Return no field before any update."""
        runs = [ending.weights for _, ending in self._ended()]
        if not any(runs):
            return {}
        shown = [[[run.first, run.version] for run in each] for each in runs]
        last = next(each[-1].version for each in reversed(runs) if each)
        return {"metadata": {"weight_version": last, "weight_versions": shown}}

    def _whole_choices(self) -> list[dict[str, Any]]:
        """Return the choices for a reply without streaming. REQUIRES: every choice has ended."""
        choices = [shape.whole(ending) for shape, ending in self._ended()]
        for choice, shape, ids in zip(choices, self._shapes, self._ids or (), strict=False):
            choice.update(ids.of_answer())
            if shape.prompt_in_choice:
                choice.update(ids.of_prompt())
        return choices

    def _prompt_ids(self) -> dict[str, Any]:
        """Return the prompt's token ids as a top-level field of the reply. Return no field if each
        choice has them, or if the reply shows no ids."""
        if self._ids is None or self._shapes[0].prompt_in_choice:
            return {}
        return self._ids[0].of_prompt()

    def _ended(self) -> list[tuple[ReplyShape, Ending]]:
        """Return each choice with the ending of its answer. REQUIRES: every choice has ended."""
        return [(shape, self._endings[number]) for number, shape in enumerate(self._shapes)]

    def _usage(self) -> dict[str, Any]:
        """Return the `usage` of the whole reply. REQUIRES: every choice has ended."""
        endings = [ending for _, ending in self._ended()]
        thought = [shape.reasoning_tokens(ending) for shape, ending in self._ended()]
        return usage(
            [ending.usage for ending in endings[:: self._choices]],
            sum(ending.completion_tokens for ending in endings),
            None if thought[0] is None else sum(tokens or 0 for tokens in thought),
            [ending.usage for ending in endings],
            with_hit=self._with_hit,
        )


class ChoiceWriter:
    """An AnswerWriter for one choice of an OpenAI-shaped reply."""

    def __init__(
        self,
        reply: ChunkedReply,
        number: int,
        shape: ReplyShape,
        chunks: ChunkEvents,
        after: Mapping[str, Any],
        prompt_tokens: int | None = None,
        ids: TokenIds | None = None,
    ) -> None:
        """number: index of the choice in the reply. chunks: encoder of the stream's events. after:
        fields of a chunk after its choices. prompt_tokens: length of the prompt in tokens, if each
        chunk reports the tokens used so far; else None. ids: collector of token ids; None if the
        reply shows no ids."""
        self.id = reply.head.id
        self.may_complete = shape.may_complete
        self.keeps = shape.keeps
        self._reply = reply
        self._number = number
        self._shape = shape
        self._chunks = chunks
        self._after = after
        self._prompt_tokens = prompt_tokens
        self._ids = ids
        self._shows_prompt = ids is not None
        """True until the stream has sent the prompt's token ids."""
        self._tokens = 0
        self._plain_event: Callable[[str], bytes] | None = None

    @property
    def complete(self) -> bool:
        return self._shape.complete

    @property
    def kept_bytes(self) -> int:
        ids = 0 if self._ids is None else self._ids.kept_bytes
        return self._shape.kept_bytes + ids

    def opening(self) -> bytes:
        return self._events(self._shape.opening())

    def piece(self, piece: Piece) -> bytes:
        if self._plain_event is not None:
            return self._plain_event(piece.text) if piece.text else b""
        if piece.token is not None:
            self._tokens += 1
            if self._ids is not None:
                self._ids.add(piece.token.token)
        events = self._events(self._shape.push(piece))
        if self._shape.plain is not None and self._prompt_tokens is None and self._ids is None:
            self._plain_event = self._chunks.of_text(self._shape.plain)
        return events

    def ending(self, rest: Piece, ending: Ending) -> bytes:
        last = self._events([*self._shape.push(rest), *self._shape.finish(ending)])
        return last + self._reply.end(self._number, ending)

    def _events(self, choices: Sequence[bytes]) -> bytes:
        # A whole reply does not use such events.
        shows_more = self._prompt_tokens is not None or self._ids is not None
        if not (choices and self._shape.is_streamed and shows_more):
            return self._chunks.of(choices)
        after = dict(self._after)
        if self._prompt_tokens is not None:
            after["usage"] = usage_so_far(self._prompt_tokens, self._tokens)
        if self._ids is None:
            return self._chunks.of_each(choices, after)
        return self._with_ids(self._ids, choices[0], after) + self._chunks.of_each(
            choices[1:], after
        )

    def _with_ids(self, ids: TokenIds, choice: bytes, after: Mapping[str, Any]) -> bytes:
        """Return the event of a choice, with the token ids added since the previous event. after:
        fields of the chunk after its choices."""
        in_choice = ids.of_answer()
        beside: dict[str, Any] = {}
        if self._shows_prompt:
            (in_choice if self._shape.prompt_in_choice else beside).update(ids.of_prompt())
            self._shows_prompt = False
        return self._chunks.of_each([with_fields(choice, in_choice)], {**after, **beside})

    def failure(self, error: Exception) -> bytes:
        return event(error_body(error)) + DONE

    def keep_alive(self) -> bytes:
        return KEEP_ALIVE_COMMENT

    def whole(self) -> dict[str, Any]:
        """Return the body of a reply without streaming."""
        return self._reply.whole()
