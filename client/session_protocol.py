"""The rules of a session: its calls, and its retries and reopening after a failure.

Each operation is a generator of steps. It yields a Call, a Pause or a ReadTurn, and receives the
step's result. If the step failed, a ClientError is thrown into it (`advance`). AsyncSession runs
the steps. This module makes no call itself. Invariant: the conversation holds only input and
answers confirmed by the node.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from grpc import StatusCode

from tasuki.engine.messages import FinishReason
from tasuki.proto import inference_pb2 as pb

from .answer import Answer
from .errors import ClientError, RetryPolicy, is_transient, next_pause
from .prompt import Prompt

Result = TypeVar("Result")


@dataclass(frozen=True)
class Call:
    """A step: one unary call of the Session service, by the method's name. Its result is the
    response. node: the address; empty if the client has only one node. seconds: timeout; None: no
    timeout."""

    method: str
    request: Any
    node: str = ""
    seconds: float | None = None


@dataclass(frozen=True)
class Pause:
    seconds: float


@dataclass(frozen=True)
class ReadTurn:
    """A step: read the answer of a session's turn to its end."""

    turn: "Turn"


class Turn(Protocol):
    """A session's turn with an answer being read."""

    cancelled: bool

    @property
    def finished(self) -> bool:
        """Return True once the turn's whole answer has been read."""


Steps = Generator[Call | Pause | ReadTurn, Any, Result]


@dataclass(frozen=True)
class Over(Generic[Result]):
    """The end of an operation, with its result, after its last step."""

    result: Result


def advance(steps: Steps[Result], outcome: Any) -> Call | Pause | ReadTurn | Over[Result]:
    """Return the operation's next step. outcome: the last step's result, None before the first, or
    the ClientError of a failed step. Raises ClientError if this error ends the operation."""
    try:
        return steps.throw(outcome) if isinstance(outcome, ClientError) else steps.send(outcome)
    except StopIteration as end:
        return Over(end.value)


class Conversation:
    """The client's copy of a session. The session can be rebuilt from it on any node.

    Holds appended inputs and answers, in order. One thread. Invariant: it holds only inputs and
    answers confirmed by the server, so a rebuilt session equals the lost one exactly.
    """

    def __init__(self, cache_salt: bytes, pieces: Sequence[pb.SessionAppendRequest] = ()) -> None:
        self.cache_salt = cache_salt
        self._pieces = [*pieces]

    def appended(self, prompt: Prompt) -> None:
        self._pieces.append(pb.SessionAppendRequest(**prompt.fields()))

    def answered(self, token_ids: Sequence[int]) -> None:
        if token_ids:
            self._pieces.append(pb.SessionAppendRequest(answer=pb.TokenIds(ids=token_ids)))

    def fork(self) -> "Conversation":
        return Conversation(self.cache_salt, self._pieces)

    def replay(self, session_id: str) -> Iterator[pb.SessionAppendRequest]:
        """Yield the Append requests to rebuild the conversation in an empty session."""
        for piece in self._pieces:
            request = pb.SessionAppendRequest(session_id=session_id)
            request.MergeFrom(piece)
            yield request


CLOSE_SECONDS = 1.0
"""Timeout in seconds for closing a moved session on its old node."""


class SessionLife:
    """A conversation and its session on a node. The node may forget the session. One operation at a
    time. A subclass selects the node and decides about moves (moving_session.py).

    node: address of the node with this id; empty if there is only one node.
    """

    node = ""
    metadata: tuple[tuple[str, str], ...] = ()
    """gRPC metadata sent with each turn of the session."""

    def __init__(self, conversation: Conversation, retry: RetryPolicy, id: str) -> None:
        """Set up a session. id: the node's id of the session; empty until the node has given
        one."""
        self.id = id
        self.retry = retry
        self._conversation = conversation
        self._lost = not id
        self._closed = False
        self._turn: Turn | None = None

    def open(self) -> Steps[None]:
        yield from self._persist(None)

    def append(self, prompt: Prompt) -> Steps[int]:
        """Append the prompt to the conversation. Return the conversation's length in tokens."""
        reply = yield from self._persist("Append", pb.SessionAppendRequest(**prompt.fields()))
        self._conversation.appended(prompt)
        return int(reply.total_tokens)

    def fork(self) -> Steps["SessionLife"]:
        reply = yield from self._persist("Fork", pb.SessionForkRequest())
        return self._twin(self._conversation.fork(), reply.session_id)

    def close(self) -> Steps[None]:
        """Close the session. If the node has lost it or is unavailable, do nothing: a returning
        node drops idle sessions. Other transient failures are retried."""
        self._closed = True
        pauses = self.retry.pauses()
        while True:
            try:
                yield Call("Close", pb.SessionCloseRequest(session_id=self.id), self.node)
                return
            except ClientError as error:
                if error.kind == "unknown_session" or error.status is StatusCode.UNAVAILABLE:
                    return
                yield Pause(next_pause(pauses, error))

    def attempt_turn(self, request: pb.SessionGenerateRequest) -> Steps[None]:
        """Put the session's present id into the request, before each attempt. Open the session
        again if it is lost, or should move."""
        yield from self._reopen_if_lost()
        request.session_id = self.id

    def turn_begun(self, turn: Turn) -> None:
        self._turn = turn

    def turn_failed(self, error: ClientError) -> bool:
        """Mark the session as lost after a failed attempt of its turn, because the node may or may
        not have the answer. Return True if another node should be tried without a pause."""
        self._lost = True
        return self._goes_elsewhere(error)

    def turn_finished(self, answer: Answer) -> None:
        self._turn = None
        if answer.reason is not FinishReason.ABORT:
            self._conversation.answered(answer.token_ids)

    def _persist(self, method: str | None, request: Any = None) -> Steps[Any]:
        """Make a call on the session, and open the session again first if the node has lost it.
        method: name of the call; None: only open a lost session."""
        pauses = self.retry.pauses()
        while True:
            try:
                yield from self._reopen_if_lost()
                reply = None
                if method is not None:
                    request.session_id = self.id
                    reply = yield Call(method, request, self.node)
            except ClientError as error:
                if self._closed:
                    raise
                if self._goes_elsewhere(error):
                    continue
                self._lost = self._lost or is_transient(error)
                yield Pause(next_pause(pauses, error))
            else:
                # The node took the call, so the previous turn is over. Its answer comes first in
                # the conversation, even if the caller did not read it to the end.
                if self._turn is not None:
                    yield ReadTurn(self._turn)
                self._taken()
                return reply

    def _reopen_if_lost(self) -> Steps[None]:
        if self._turn is not None and self._turn.cancelled and not self._turn.finished:
            # The turn may have ended just before, and then the node's session has an unread answer.
            self._lost = True
        yield from self._look_around()
        if not self._lost or self._closed:
            return
        node = yield from self._where_to_open()
        opening = pb.SessionOpenRequest(cache_salt=self._conversation.cache_salt)
        opened = yield Call("Open", opening, node)
        left, self.id = (self.node, self.id), opened.session_id
        self.node = node
        self._entered(left[0])
        for append in self._conversation.replay(self.id):
            yield Call("Append", append, node)
        self._lost, self._turn = False, None
        if left[1]:
            with suppress(ClientError):
                closing = pb.SessionCloseRequest(session_id=left[1])
                yield Call("Close", closing, left[0], CLOSE_SECONDS)

    def _twin(self, conversation: Conversation, id: str) -> "SessionLife":
        """Return a session of `conversation` on the same node. id: the node's id of the new
        session."""
        return SessionLife(conversation, self.retry, id)

    def _look_around(self) -> Steps[None]:
        """Mark the session as lost, before a call, if it should move to another node."""
        yield from ()

    def _where_to_open(self) -> Steps[str]:
        yield from ()
        return self.node

    def _entered(self, left: str) -> None:
        """Record the session's opening on a new node. left: the old node's address; empty: none."""

    def _goes_elsewhere(self, error: ClientError) -> bool:
        """Return True if the call's failure is a reason to try at once on another node."""
        return False

    def _taken(self) -> None:
        """Record a call accepted by the session's node."""
