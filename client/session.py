"""The caller's face: a client of one front, and the sessions it opens."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypedDict, Unpack

import grpc

from ..proto import inference_pb2 as pb
from ..proto import inference_pb2_grpc as pb_grpc
from .answer import AnswerStream
from .cache_events import EventBatch, batches
from .errors import client_error

_OPTIONS = (
    ("grpc.max_receive_message_length", 32 * 2**20),
    ("grpc.max_send_message_length", 32 * 2**20),
    ("grpc.keepalive_time_ms", 20_000),
)


class SamplingOptions(TypedDict, total=False):
    """Fields of tasuki.v1.Sampling; what is left out takes the server's default."""

    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float
    seed: int
    stop_token_ids: Sequence[int]
    ignore_eos: bool


@dataclass(frozen=True)
class Prompt:
    """Exactly one of text, token_ids and messages (each with role and content)."""

    text: str | None = None
    token_ids: Sequence[int] | None = None
    messages: Sequence[Mapping[str, str]] | None = None

    def __post_init__(self) -> None:
        given = (self.text, self.token_ids, self.messages)
        if sum(value is not None for value in given) != 1:
            raise ValueError("give exactly one of text, token_ids and messages")

    def fields(self) -> dict[str, Any]:
        """As keyword arguments of a request; None where not given."""
        ids, messages = self.token_ids, self.messages
        return {
            "text": self.text,
            "token_ids": None if ids is None else pb.TokenIds(ids=ids),
            "messages": None
            if messages is None
            else pb.Messages(items=[pb.Message(**message) for message in messages]),
        }


class Client:
    """One channel to a decode or fused daemon. Any thread may use it. Raises ClientError."""

    def __init__(self, target: str) -> None:
        """target: HOST:PORT."""
        self._channel = grpc.insecure_channel(target, options=_OPTIONS)
        self._inference = pb_grpc.InferenceStub(self._channel)  # type: ignore[no-untyped-call]
        self._sessions = pb_grpc.SessionStub(self._channel)  # type: ignore[no-untyped-call]
        self._admin = pb_grpc.CacheAdminStub(self._channel)  # type: ignore[no-untyped-call]

    def watch_cache(self, stream: str = "usable") -> Iterator[EventBatch]:
        """The node's cache as it changes, a snapshot first; PrefixIndex follows it. Has no end:
        close the iterator. `stream`: usable (prefixes with a checkpoint) or all (pages too)."""
        wanted = pb.WatchEventsRequest.Stream.Value(stream.upper())
        call = self._admin.WatchEvents(pb.WatchEventsRequest(stream=wanted))
        try:
            yield from batches(call)
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
        **sampling: Unpack[SamplingOptions],
    ) -> AnswerStream:
        """One request with its whole prompt. The stream may outlive this call, not this client."""
        request = pb.GenerateRequest(
            request_id=request_id,
            sampling=pb.Sampling(**sampling),
            cache_salt=cache_salt,
            marks=marks,
            **prompt.fields(),
        )
        return AnswerStream(lambda: self._inference.Generate(request))

    def abort(self, request_id: str) -> None:
        """Idempotent: ends the request where it still lives."""
        call(self._inference.Abort, pb.AbortRequest(request_id=request_id))

    def open_session(self, cache_salt: bytes = b"") -> "Session":
        reply = call(self._sessions.Open, pb.SessionOpenRequest(cache_salt=cache_salt))
        return Session(self._sessions, reply.session_id)

    def stats(self) -> pb.StatsResponse:
        """Counts of pages and slots by state, and the cache's counters."""
        reply: pb.StatsResponse = call(self._admin.Stats, pb.StatsRequest())
        return reply

    def flush(self) -> int:
        """Drops what nobody holds; returns how many pages and checkpoints."""
        return int(call(self._admin.Flush, pb.FlushRequest()).dropped)

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Session:
    """A conversation whose tokens the server keeps; each call sends only what is new.

    One thread at a time. `with` closes it.
    """

    def __init__(self, stub: pb_grpc.SessionStub, session_id: str) -> None:
        self._stub = stub
        self.id = session_id

    def append(self, prompt: Prompt) -> int:
        """Adds to the end of the conversation; returns its length in tokens."""
        request = pb.SessionAppendRequest(session_id=self.id, **prompt.fields())
        return int(call(self._stub.Append, request).total_tokens)

    def generate(
        self, *, request_id: str = "", **sampling: Unpack[SamplingOptions]
    ) -> AnswerStream:
        """Answers the conversation so far. A finished answer becomes part of it."""
        request = pb.SessionGenerateRequest(
            session_id=self.id, request_id=request_id, sampling=pb.Sampling(**sampling)
        )
        return AnswerStream(lambda: self._stub.Generate(request))

    def fork(self) -> "Session":
        """A second session with the same conversation; the two go separate ways."""
        reply = call(self._stub.Fork, pb.SessionForkRequest(session_id=self.id))
        return Session(self._stub, reply.session_id)

    def close(self) -> None:
        call(self._stub.Close, pb.SessionCloseRequest(session_id=self.id))

    def __enter__(self) -> "Session":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()


def call(method: Any, request: Any) -> Any:
    """One unary call. Raises ClientError."""
    try:
        return method(request)
    except grpc.RpcError as error:
        raise client_error(error) from error
