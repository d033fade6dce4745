"""One answer for the caller: its segments as they arrive, then the whole answer."""

from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Protocol

from tasuki.engine.messages import FinishReason, Usage
from tasuki.engine.messages.proto import USAGE, finish_reason_from_proto
from tasuki.proto import inference_pb2 as pb

from .channel import ResponseStream, Wire, run
from .errors import ClientError, RetryPolicy, next_pause


@dataclass(frozen=True)
class Piece:
    """A segment of an answer. text: whole characters only, so it may lag behind token_ids. choice:
    index of the answer among the prompt's answers."""

    token_ids: tuple[int, ...]
    text: str
    choice: int = 0


@dataclass(frozen=True)
class PromptLogprobs:
    """Scores of a prompt's tokens from the second on. The fields are parallel, an entry a token.
    logprobs: natural logarithms. ranks: number of tokens at least as likely, itself included. top:
    the likeliest tokens with their logprobs, as many as requested."""

    logprobs: tuple[float, ...]
    ranks: tuple[int, ...]
    top: tuple[tuple[tuple[int, float], ...], ...]


@dataclass(frozen=True)
class Answer:
    """One whole answer. token_ids, logprobs and margins are parallel, an entry a token.
    top_logprobs is parallel too, if requested: the likeliest tokens at each position with their
    logprobs. usage: the server's counts. prompt_logprobs: present if requested."""

    token_ids: tuple[int, ...]
    text: str
    reason: FinishReason
    usage: Usage
    logprobs: tuple[float, ...]
    margins: tuple[float, ...]
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] = ()
    prompt_logprobs: PromptLogprobs | None = None


class AnswerParts:
    """A collector of the answers to one prompt. It gathers their chunks until each answer has its
    Finished message. Independent of channels."""

    def __init__(self, choices: int = 1) -> None:
        """Set up a collector. choices: number of answers."""
        self._chunks: list[list[pb.TokenChunk]] = [[] for _ in range(choices)]
        self._finished: dict[int, pb.Finished] = {}
        self._scored: list[pb.PromptLogprobs] = []

    @property
    def begun(self) -> bool:
        return bool(self._scored) or any(self._chunks)

    @property
    def finished(self) -> bool:
        return len(self._finished) == len(self._chunks)

    def take(self, response: pb.GenerateResponse) -> Piece | None:
        """Add a response of the stream. Return its segment of an answer; None for other
        responses."""
        match response.WhichOneof("event"):
            case "finished":
                self._finished[response.choice] = response.finished
                return None
            case "prompt_logprobs":
                self._scored.append(response.prompt_logprobs)
                return None
        self._chunks[response.choice].append(response.chunk)
        return Piece(tuple(response.chunk.token_ids), response.chunk.text, response.choice)

    def answers(self) -> list[Answer]:
        """Return every answer, complete. Raises ConnectionError if the stream ended early."""
        if not self.finished:
            raise ConnectionError("the server ended the stream without Finished: ask again")
        return [
            self._answer(chunks, self._finished[choice])
            for choice, chunks in enumerate(self._chunks)
        ]

    def _answer(self, chunks: list[pb.TokenChunk], finished: pb.Finished) -> Answer:
        return Answer(
            token_ids=tuple(token for chunk in chunks for token in chunk.token_ids),
            text="".join(chunk.text for chunk in chunks),
            reason=finish_reason_from_proto(finished.reason),
            usage=USAGE.from_wire(finished.usage),
            logprobs=tuple(value for chunk in chunks for value in chunk.logprobs),
            margins=tuple(value for chunk in chunks for value in chunk.margins),
            top_logprobs=tuple(_top(top) for chunk in chunks for top in chunk.top),
            prompt_logprobs=self._prompt_logprobs(),
        )

    def _prompt_logprobs(self) -> PromptLogprobs | None:
        if not self._scored:
            return None
        return PromptLogprobs(
            logprobs=tuple(value for piece in self._scored for value in piece.logprobs),
            ranks=tuple(rank for piece in self._scored for rank in piece.ranks),
            top=tuple(_top(top) for piece in self._scored for top in piece.top),
        )


def _top(top: pb.TopLogprobs) -> tuple[tuple[int, float], ...]:
    return tuple(zip(top.token_ids, top.logprobs, strict=True))


class TurnOwner(Protocol):
    """The session of an answer's turn. It receives the turn's result."""

    def turn_failed(self, error: ClientError) -> bool:
        """Record a failed call of the turn. Its effect on the node is unknown. Return True if the
        turn should be tried on another node without a pause."""

    def turn_finished(self, answer: Answer) -> None:
        """Record the turn's whole answer, once it has been read."""


class AsyncAnswer:
    """An answer in asyncio: use `async for` to get segments, or await `result`. Cancelling the
    reading task aborts the request.

    A call failing before its first segment is retried if useful. After the first segment, the
    caller handles a failure. Raises ClientError, and ConnectionError if the stream ended early.
    """

    def __init__(
        self,
        wire: Wire,
        start: Callable[[], Awaitable[ResponseStream]],
        retry: RetryPolicy,
        owner: TurnOwner | None = None,
        choices: int = 1,
    ) -> None:
        """Set up an answer without a call. start: makes one attempt; raises ClientError. owner: the
        session of the turn; None if the answer is not a session's turn. choices: number of
        answers."""
        self._wire = wire
        self._start = start
        self._owner = owner
        self._pauses = retry.pauses()
        self._parts = AnswerParts(choices)
        self._call: ResponseStream | None = None
        self._failure: ClientError | None = None
        self._ended = False
        self.cancelled = False

    @property
    def finished(self) -> bool:
        """Return True once all answers to the prompt have been read."""
        return self._parts.finished

    async def begin(self) -> None:
        """Call the node, unless a call has begun. Failed calls are retried by the retry policy.
        Raises the last failure."""
        while self._call is None:
            try:
                self._call = await self._start()
            except ClientError as error:
                await self._wire.sleep(self._pause_after(error))

    async def next_piece(self) -> Piece | None:
        """Return the next segment of an answer, or None once the stream has ended. Raises
        ClientError."""
        while not self._ended:
            if self._failure is not None:
                raise self._failure
            await self.begin()
            assert self._call is not None
            try:
                response = await self._call.read()
            except ClientError as error:
                self._call, self._ended = None, self.finished
                await self._wire.sleep(self._pause_after(error))
                continue
            if response is None:
                self._ended = True
                break
            piece = self._parts.take(response)
            if self.finished and self._owner is not None:
                self._owner.turn_finished(self._parts.answers()[0])
            if piece is not None:
                return piece
        return None

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while (piece := await self.next_piece()) is not None:
            yield piece

    async def result(self) -> Answer:
        """Read the rest of the stream and return the whole answer, the first of several."""
        return (await self.results())[0]

    async def results(self) -> list[Answer]:
        """Read the rest of the stream and return every answer."""
        while await self.next_piece() is not None:
            pass
        return self._parts.answers()

    def cancel(self) -> None:
        """Abort the request on the node."""
        self.cancelled = True
        if self._call is not None:
            self._call.cancel()

    def _pause_after(self, error: ClientError) -> float:
        """Return the seconds to wait before the next attempt. Raises `error` if there is no further
        attempt; later reads raise it again."""
        self._failure = error
        moves = self._owner is not None and self._owner.turn_failed(error)
        if self._parts.begun or self.cancelled:
            raise error
        pause = 0.0 if moves else next_pause(self._pauses, error)
        self._failure = None
        return pause


class AnswerStream:
    """An answer for blocking callers: iterate it for segments, or call `result` for the whole.
    `cancel` aborts the request.

    It retries as AsyncAnswer, and makes the first attempt at construction. Owned by one thread; any
    thread may call cancel. Raises ClientError, and ConnectionError if the stream ended early.
    """

    def __init__(self, answer: AsyncAnswer) -> None:
        """Make the first attempt of the call. answer: an answer over a BlockingWire."""
        self._answer = answer
        run(answer.begin())

    @property
    def finished(self) -> bool:
        """Return True once all answers to the prompt have been read."""
        return self._answer.finished

    def __iter__(self) -> Generator[Piece, None, None]:
        while (piece := run(self._answer.next_piece())) is not None:
            yield piece

    def result(self) -> Answer:
        """Read the rest of the stream and return the whole answer, the first of several."""
        return run(self._answer.result())

    def results(self) -> list[Answer]:
        """Read the rest of the stream and return every answer."""
        return run(self._answer.results())

    def cancel(self) -> None:
        """Abort the request on the node."""
        self._answer.cancel()
