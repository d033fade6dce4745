"""The caller's face: a client of one front, and the sessions it opens.

A session outlives the node's memory of it: where a node restarts or forgets, the conversation is
opened again and replayed from the caller's copy, and the cache finds what it still has. No answer
depends on which node gave it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, TypeVar, Unpack

import grpc

from ..engine.messages import FinishReason
from ..front.tls import ClientTls
from ..proto import inference_pb2 as pb
from ..proto import inference_pb2_grpc as pb_grpc
from .answer import Answer, AnswerStream
from .cache_events import EventBatch, batches
from .channel import bearing, open_channel
from .conversation import Conversation
from .errors import ClientError, client_error
from .prompt import Prompt, SamplingOptions, generate_request
from .retry import RetryPolicy, is_transient

Result = TypeVar("Result")


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
        """target: HOST:PORT; tls: None speaks plain text; retry: of calls that a node failed.
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
        request = generate_request(prompt, request_id, cache_salt, marks, sampling)
        return AnswerStream(OneShot(lambda: self._inference.Generate(request)), self._retry)

    def abort(self, request_id: str) -> None:
        """Idempotent: ends the request where it still lives."""
        call(self._inference.Abort, pb.AbortRequest(request_id=request_id))

    def open_session(self, cache_salt: bytes = b"") -> "Session":
        session = Session(self._sessions, Conversation(cache_salt), self._retry, id="")
        session.persist(lambda: None)
        return session

    def stats(self) -> pb.StatsResponse:
        """Counts of pages and slots by state, and the cache's counters."""
        reply: pb.StatsResponse = call(self._admin.Stats, pb.StatsRequest())
        return reply

    def explain(self, request_id: str) -> pb.ExplainResponse:
        """How a request of this node ended. Raises ClientError, of kind unknown_request where the
        node remembers none of that id."""
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class OneShot:
    """A request that stands alone: every attempt is the same call."""

    def __init__(self, start: Callable[[], "grpc.CallIterator[pb.GenerateResponse]"]) -> None:
        self.start = start

    def failed(self) -> None:
        return None

    def finished(self, answer: Answer) -> None:
        return None


class Session:
    """A conversation whose tokens the server keeps; each call sends only what is new.

    One thread at a time. `with` closes it.
    """

    def __init__(
        self, stub: pb_grpc.SessionStub, conversation: Conversation, retry: RetryPolicy, id: str
    ) -> None:
        """id: as the node knows the conversation; empty where it is yet to be told."""
        self.id = id
        self._stub = stub
        self._conversation = conversation
        self._retry = retry
        self._lost = not id
        self._closed = False
        self._turn: AnswerStream | None = None

    def append(self, prompt: Prompt) -> int:
        """Adds to the end of the conversation; returns its length in tokens."""

        def add() -> int:
            request = pb.SessionAppendRequest(session_id=self.id, **prompt.fields())
            return int(call(self._stub.Append, request).total_tokens)

        total = self.persist(add)
        self._conversation.appended(prompt)
        return total

    def generate(
        self, *, request_id: str = "", **sampling: Unpack[SamplingOptions]
    ) -> AnswerStream:
        """Answers the conversation so far. A finished answer becomes part of it."""
        request = pb.SessionGenerateRequest(request_id=request_id, sampling=pb.Sampling(**sampling))
        self._turn = AnswerStream(_Turn(self, request), self._retry)
        return self._turn

    def fork(self) -> "Session":
        """A second session with the same conversation; the two go separate ways."""
        reply = self.persist(
            lambda: call(self._stub.Fork, pb.SessionForkRequest(session_id=self.id))
        )
        return Session(self._stub, self._conversation.fork(), self._retry, reply.session_id)

    def close(self) -> None:
        self._closed = True
        call(self._stub.Close, pb.SessionCloseRequest(session_id=self.id))

    def persist(self, operation: Callable[[], Result]) -> Result:
        """An operation on the session, opened again where the node has lost it."""
        pauses = self._retry.pauses()
        while True:
            try:
                self.reopen_if_lost()
                result = operation()
            except ClientError as error:
                if self._closed or not is_transient(error):
                    raise
                self._lost = True
                pause = next(pauses, None)
                if pause is None:
                    raise
                time.sleep(pause)
            else:
                self._read_rest()
                return result

    def reopen_if_lost(self) -> None:
        """One attempt. Raises ClientError."""
        if self._turn is not None and self._turn.cancelled and not self._turn.finished:
            # It may have ended just before, and then the node has an answer that nobody read.
            self._lost = True
        if not self._lost or self._closed:
            return
        request = pb.SessionOpenRequest(cache_salt=self._conversation.cache_salt)
        left, self.id = self.id, call(self._stub.Open, request).session_id
        for append in self._conversation.replay(self.id):
            call(self._stub.Append, append)
        self._lost, self._turn = False, None
        if left:
            with suppress(ClientError):
                call(self._stub.Close, pb.SessionCloseRequest(session_id=left))

    def start_turn(
        self, request: pb.SessionGenerateRequest
    ) -> "grpc.CallIterator[pb.GenerateResponse]":
        self.reopen_if_lost()
        request.session_id = self.id
        stream: grpc.CallIterator[pb.GenerateResponse] = self._stub.Generate(request)
        return stream

    def turn_failed(self) -> None:
        self._lost = True

    def turn_finished(self, answer: Answer) -> None:
        self._turn = None
        if answer.reason is not FinishReason.ABORT:
            self._conversation.answered(answer.token_ids)

    def _read_rest(self) -> None:
        """The node took an operation, so the turn before it is over: its answer comes first in the
        conversation even if the caller did not read it to the end."""
        if self._turn is not None:
            self._turn.result()

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


class _Turn:
    """One answer of a session."""

    def __init__(self, session: Session, request: pb.SessionGenerateRequest) -> None:
        self._session = session
        self._request = request

    def start(self) -> "grpc.CallIterator[pb.GenerateResponse]":
        return self._session.start_turn(self._request)

    def failed(self) -> None:
        self._session.turn_failed()

    def finished(self, answer: Answer) -> None:
        self._session.turn_finished(answer)


def call(method: Any, request: Any) -> Any:
    """One unary call. Raises ClientError."""
    try:
        return method(request)
    except grpc.RpcError as error:
        raise client_error(error) from error
