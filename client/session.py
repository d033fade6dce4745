"""The blocking client of one node, and the sessions that it opens.

A session outlives its node: after a restart or an expiry the conversation is opened again and
replayed from the client's copy, and the cache still holds most of its prefix. No answer depends on
which node gave it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar, Unpack

import grpc

from tasuki.proto import inference_pb2 as pb
from tasuki.proto import inference_pb2_grpc as pb_grpc
from tasuki.utils.tls import ClientTls

from .answer import AnswerStream
from .cache_events import EventBatch, EventParts
from .channel import bearing, open_channel
from .conversation import Conversation
from .errors import ClientError, client_error
from .moving_session import Move, moves_of
from .prompt import (
    NO_TARGETS,
    Prompt,
    SamplingOptions,
    Targets,
    generate_request,
    sampling_to_proto,
)
from .retry import RetryPolicy
from .session_protocol import Call, Over, Pause, ReadTurn, SessionLife, Steps, advance

Result = TypeVar("Result")
StubOf = Callable[[str], Any]
"""By a node's address, what calls its Session service."""


class Client:
    """One channel to a decode or fused daemon. Any thread may use it. Raises ClientError."""

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """target: HOST:PORT; tls: None for plain text; retry: of failed calls.
        Raises TlsError."""
        self._channel = open_channel(target, tls)
        self._retry = retry or RetryPolicy()
        channel = bearing(self._channel, api_key) if api_key else self._channel
        self._inference = pb_grpc.InferenceStub(channel)  # type: ignore[no-untyped-call]
        self._sessions = pb_grpc.SessionStub(channel)  # type: ignore[no-untyped-call]
        self._admin = pb_grpc.CacheAdminStub(channel)  # type: ignore[no-untyped-call]

    def watch_cache(self, stream: str = "usable") -> Iterator[EventBatch]:
        """The node's cache as it changes, a snapshot first; PrefixIndex follows it. Has no end:
        close the iterator. `stream`: usable (prefixes with a checkpoint) or all (pages too)."""
        wanted = pb.WatchEventsRequest.Stream.Value(f"STREAM_{stream.upper()}")
        call = self._admin.WatchEvents(pb.WatchEventsRequest(stream=wanted))
        parts = EventParts()
        try:
            for part in call:
                batch = parts.take(part)
                if batch is not None:
                    yield batch
        except grpc.RpcError as error:
            raise client_error(error) from error
        finally:
            call.cancel()

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
    ) -> AnswerStream:
        """One request with its whole prompt. n: answers to it, of which number i is drawn
        with seed + i. prompt_logprobs: so many of the likeliest tokens beside each of the prompt's
        own; None: not wanted. prediction: tokens that the answer is thought to be, by which it may
        come sooner. The stream may outlive this call, not this client."""
        request = generate_request(
            prompt,
            request_id,
            cache_salt,
            marks,
            priority,
            n,
            prompt_logprobs,
            prediction,
            targets,
            sampling,
        )
        return AnswerStream(lambda: call(self._inference.Generate, request), self._retry, choices=n)

    def abort(self, request_id: str) -> None:
        """Idempotent: ends the request where it still lives."""
        call(self._inference.Abort, pb.AbortRequest(request_id=request_id))

    def open_session(self, cache_salt: bytes = b"") -> "Session":
        life = SessionLife(Conversation(cache_salt), self._retry, id="")
        return opened(life, lambda node: self._sessions)

    def stats(self) -> pb.StatsResponse:
        """Counts of pages and slots by state, and the cache's counters."""
        reply: pb.StatsResponse = call(self._admin.Stats, pb.StatsRequest())
        return reply

    def explain(self, request_id: str) -> pb.ExplainResponse:
        """How a request of this node ended. Raises ClientError, of kind unknown_request where the
        node remembers no request of that id."""
        reply: pb.ExplainResponse = call(
            self._admin.Explain, pb.ExplainRequest(request_id=request_id)
        )
        return reply

    def flush(self) -> int:
        """Drops what nobody holds; returns how many pages and checkpoints."""
        return int(call(self._admin.Flush, pb.FlushRequest()).dropped)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session:
    """A conversation whose tokens the server keeps; each call sends only what is new.

    One thread at a time. `with` closes it.
    """

    def __init__(self, stub_of: StubOf, life: SessionLife) -> None:
        self._stub_of = stub_of
        self._life = life

    @property
    def id(self) -> str:
        """The node's id of the session; another one after it was opened again."""
        return self._life.id

    @property
    def moves(self) -> tuple[Move, ...]:
        """Between the nodes of a fleet, so far."""
        return moves_of(self._life)

    @property
    def node(self) -> str:
        """The address of the fleet's node that has it; empty where the client has one node."""
        return self._life.node

    def append(self, prompt: Prompt) -> int:
        """Adds to the end of the conversation; returns its length in tokens."""
        return take(self._life.append(prompt), self._stub_of)

    def generate(
        self,
        *,
        request_id: str = "",
        priority: int = 0,
        targets: Targets = NO_TARGETS,
        **sampling: Unpack[SamplingOptions],
    ) -> AnswerStream:
        """Answers the conversation so far. A finished answer becomes part of it. priority: of a
        caller's requests the lowest is begun first."""
        request = pb.SessionGenerateRequest(
            request_id=request_id,
            sampling=sampling_to_proto(sampling),
            priority=priority,
            targets=targets.to_proto(),
        )

        def start() -> "grpc.CallIterator[pb.GenerateResponse]":
            life = self._life
            take(life.attempt_turn(request), self._stub_of)
            generate = partial(self._stub_of(life.node).Generate, metadata=life.metadata)
            stream: grpc.CallIterator[pb.GenerateResponse] = call(generate, request)
            return stream

        turn = AnswerStream(start, self._life.retry, self._life)
        self._life.turn_begun(turn)
        return turn

    def fork(self) -> "Session":
        """A second session with the same conversation; the two go separate ways."""
        return Session(self._stub_of, take(self._life.fork(), self._stub_of))

    def close(self) -> None:
        take(self._life.close(), self._stub_of)

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()


def opened(life: SessionLife, stub_of: StubOf) -> Session:
    take(life.open(), stub_of)
    return Session(stub_of, life)


def take(steps: Steps[Result], stub_of: StubOf) -> Result:
    """Takes the steps of an operation with blocking calls. Raises ClientError."""
    outcome: Any = None
    while True:
        step = advance(steps, outcome)
        if isinstance(step, Over):
            return step.result
        outcome = None
        try:
            match step:
                case Call(method, request, node, seconds):
                    unary = partial(getattr(stub_of(node), method), timeout=seconds)
                    outcome = call(unary, request)
                case Pause(seconds):
                    time.sleep(seconds)
                case ReadTurn(AnswerStream() as turn):
                    turn.result()
        except ClientError as error:
            outcome = error


def call(method: Any, request: Any) -> Any:
    """One unary call, or the beginning of a stream. Raises ClientError."""
    try:
        return method(request)
    except grpc.RpcError as error:
        raise client_error(error) from error
    except ValueError as error:
        # gRPC raises it for a closed channel.
        raise ClientError(
            f"{error}; this client was closed: open another",
            grpc.StatusCode.FAILED_PRECONDITION,
            None,
        ) from error
