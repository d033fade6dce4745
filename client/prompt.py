"""The client's requests: a prompt, the sampling of its answer, and the calls for sending them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypedDict, TypeVar, Unpack

from tasuki.engine.messages import NO_TARGETS
from tasuki.engine.messages import Targets as Targets
from tasuki.engine.messages.proto import TARGETS
from tasuki.proto import inference_pb2 as pb

AnswerOf = TypeVar("AnswerOf")
"""Type of the returned answer: AnswerStream (blocking) or AsyncAnswer (asyncio)."""


class SamplingOptions(TypedDict, total=False):
    """Sampling options of an answer: the fields of tasuki.v1.Sampling. A missing field has the
    server's default. At most one of json_schema (its text), regex, grammar and choices."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    min_tokens: int
    bad_words: Sequence[str]
    allowed_token_ids: Sequence[int]
    top_logprobs: int
    thinking_token_budget: int
    json_schema: str
    regex: str
    grammar: str
    choices: Sequence[str]


@dataclass(frozen=True)
class Clip:
    """A video as frames: the bytes of picture files of equal size. fps: frames a second; None: the
    model's own."""

    frames: Sequence[bytes]
    fps: float | None = None


@dataclass(frozen=True)
class Prompt:
    """A prompt: exactly one of text, token_ids and messages.

    A message has a role, and content or parts: texts, the bytes of picture files, and clips.
    """

    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None

    def __post_init__(self) -> None:
        given = (self.text, self.token_ids, self.messages)
        if sum(value is not None for value in given) != 1:
            raise ValueError("give exactly one of text, token_ids and messages")

    def fields(self) -> dict[str, Any]:
        """Return the prompt as keyword arguments of a request; None for missing ones."""
        ids, messages = self.token_ids, self.messages
        return {
            "text": self.text,
            "token_ids": None if ids is None else pb.TokenIds(ids=ids),
            "messages": None
            if messages is None
            else pb.Messages(items=[_to_proto(message) for message in messages]),
        }


def _to_proto(message: Mapping[str, Any]) -> pb.Message:
    if "parts" not in message:
        return pb.Message(**message)
    return pb.Message(**{**message, "parts": map(_part, message["parts"])})


def _part(part: str | bytes | Clip) -> pb.MessagePart:
    match part:
        case str():
            return pb.MessagePart(text=part)
        case Clip():
            return pb.MessagePart(clip=pb.Clip(frames=part.frames, fps=part.fps or 0.0))
        case _:
            return pb.MessagePart(picture=pb.Picture(file=part))


def sampling_to_proto(sampling: SamplingOptions) -> pb.Sampling:
    fields: dict[str, Any] = dict(sampling)
    if "choices" in fields:
        fields["choices"] = pb.Choices(texts=fields["choices"])
    return pb.Sampling(**fields)


class ClientRequests(Generic[AnswerOf]):
    """The requests of a client without a session, blocking or awaited."""

    def generate(
        self,
        prompt: Prompt,
        *,
        request_id: str = "",
        cache_salt: bytes = b"",
        marks: Sequence[int] = (),
        priority: int = 0,
        n: int = 1,
        prompt_logprobs: int | None = None,
        prediction: Sequence[int] = (),
        targets: Targets = NO_TARGETS,
        **sampling: Unpack[SamplingOptions],
    ) -> AnswerOf:
        """Send one request with its whole prompt. The answer may outlive this call, but not this
        client.

        Client makes the call before it returns, AsyncClient when the answer is first awaited.
        request_id: empty for a new one. cache_salt: only requests of one salt share cached
        prefixes. marks: token counts for checkpoints of the prompt. priority: the lowest of a
        caller's requests begins first. n: number of answers; answer i is sampled with seed + i.
        prompt_logprobs: number of likeliest tokens returned with each of the prompt's tokens; None:
        no scores. prediction: expected tokens of the answer; the answer may then come sooner.
        targets: latency targets. A node rejects the request on arrival if it expects to miss one.
        The ClientError then has the kind `overloaded` and retry_after. Raises ValueError.
        """
        if n < 1:
            raise ValueError(f"n must be at least 1, not {n}")
        request = pb.GenerateRequest(
            n=n,
            prompt_logprobs=prompt_logprobs,
            request_id=request_id,
            sampling=sampling_to_proto(sampling),
            cache_salt=cache_salt,
            marks=marks,
            priority=priority,
            targets=TARGETS.to_wire(targets),
            prediction=prediction,
            **prompt.fields(),
        )
        return self._ask(request, n)

    def _ask(self, request: pb.GenerateRequest, choices: int) -> AnswerOf:
        raise NotImplementedError


class SessionRequests(Generic[AnswerOf]):
    """The requests on a session, blocking or awaited."""

    def generate(
        self,
        *,
        request_id: str = "",
        priority: int = 0,
        targets: Targets = NO_TARGETS,
        **sampling: Unpack[SamplingOptions],
    ) -> AnswerOf:
        """Request an answer to the conversation so far. A finished answer, unless aborted, becomes
        part of the conversation. request_id: empty: a new one. priority: the lowest of a caller's
        requests begins first."""
        request = pb.SessionGenerateRequest(
            request_id=request_id,
            sampling=sampling_to_proto(sampling),
            priority=priority,
            targets=TARGETS.to_wire(targets),
        )
        return self._ask(request)

    def _ask(self, request: pb.SessionGenerateRequest) -> AnswerOf:
        raise NotImplementedError
