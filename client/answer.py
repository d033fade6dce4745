"""One answer on the caller's side: pieces as they come, then the whole."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

import grpc

from tasuki.engine.messages import FinishReason, Usage
from tasuki.engine.messages.proto import finish_reason_from_proto, usage_from_proto
from tasuki.proto import inference_pb2 as pb

from .errors import ClientError, client_error
from .retry import RetryPolicy, next_pause


@dataclass(frozen=True)
class Piece:
    """text holds whole characters only, so it may lag behind token_ids."""

    token_ids: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Answer:
    """token_ids, logprobs and margins run in parallel, and so does top_logprobs where they were
    asked for: of each place the likeliest tokens with their logprobs. usage is what the server
    counted."""

    token_ids: tuple[int, ...]
    text: str
    reason: FinishReason
    usage: Usage
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()


class AnswerParts:
    """Chunks of one answer as they come, until Finished. Knows no channel."""

    def __init__(self) -> None:
        self._chunks: list[pb.TokenChunk] = []
        self._finished: pb.Finished | None = None

    @property
    def begun(self) -> bool:
        return bool(self._chunks)

    @property
    def finished(self) -> bool:
        return self._finished is not None

    def take(self, response: pb.GenerateResponse) -> Piece | None:
        if response.WhichOneof("event") == "finished":
            self._finished = response.finished
            return None
        self._chunks.append(response.chunk)
        return Piece(tuple(response.chunk.token_ids), response.chunk.text)

    def answer(self) -> Answer:
        """Raises ConnectionError where the stream ended early."""
        if self._finished is None:
            raise ConnectionError("the server ended the stream without Finished: ask again")
        return Answer(
            token_ids=tuple(token for chunk in self._chunks for token in chunk.token_ids),
            text="".join(chunk.text for chunk in self._chunks),
            reason=finish_reason_from_proto(self._finished.reason),
            usage=usage_from_proto(self._finished.usage),
            logprobs=tuple(value for chunk in self._chunks for value in chunk.logprobs),
            margins=tuple(value for chunk in self._chunks for value in chunk.margins),
            top_logprobs=tuple(
                tuple(zip(top.token_ids, top.logprobs, strict=True))
                for chunk in self._chunks
                for top in chunk.top
            ),
        )


class TurnOwner(Protocol):
    """Whose turn an answer is: a session's life."""

    def turn_failed(self) -> None:
        """The call broke: what the node made of it is unknown."""

    def turn_finished(self, answer: Answer) -> None:
        """The whole answer has been read."""


class AnswerReader:
    """What every attempt at one answer shares; who asks, and by which calls, is a subclass's."""

    def __init__(self, retry: RetryPolicy, owner: TurnOwner | None) -> None:
        """owner: None where no session's turn this is."""
        self._owner = owner
        self._pauses = retry.pauses()
        self._parts = AnswerParts()
        self.cancelled = False

    @property
    def finished(self) -> bool:
        return self._parts.finished

    def _piece(self, response: pb.GenerateResponse) -> Piece | None:
        """None of the last response, which ends the turn."""
        piece = self._parts.take(response)
        if piece is None and self._owner is not None:
            self._owner.turn_finished(self._parts.answer())
        return piece

    def _pause_after(self, caught: grpc.RpcError | ClientError) -> float:
        """Seconds before the next attempt. Raises ClientError where there is none."""
        error = caught if isinstance(caught, ClientError) else client_error(caught)
        if self._owner is not None:
            self._owner.turn_failed()
        if self._parts.begun or self.cancelled:
            raise error
        return next_pause(self._pauses, error)


class AnswerStream(AnswerReader):
    """Iterate it for pieces, or call `result` for the whole. `cancel` aborts the request.

    A call that fails before its first piece, and is worth it, is made again; once a piece has been
    seen a failure is the caller's to handle. Owned by one thread, but cancel may come from any.
    Raises ClientError.
    """

    def __init__(
        self,
        start: "Callable[[], grpc.CallIterator[pb.GenerateResponse]]",
        retry: RetryPolicy,
        owner: TurnOwner | None = None,
    ) -> None:
        """start: one attempt; raises ClientError."""
        super().__init__(retry, owner)
        self._start = start
        self._call = self._attempt()

    def __iter__(self) -> Iterator[Piece]:
        while not self.finished:
            try:
                for response in self._call:
                    piece = self._piece(response)
                    if piece is not None:
                        yield piece
                return
            except grpc.RpcError as error:
                time.sleep(self._pause_after(error))
            self._call = self._attempt()

    def result(self) -> Answer:
        """Reads what has not been read and returns the whole answer."""
        for _ in self:
            pass
        return self._parts.answer()

    def cancel(self) -> None:
        self.cancelled = True
        self._call.cancel()  # type: ignore[no-untyped-call]

    def _attempt(self) -> "grpc.CallIterator[pb.GenerateResponse]":
        while True:
            try:
                return self._start()
            except ClientError as error:
                time.sleep(self._pause_after(error))
