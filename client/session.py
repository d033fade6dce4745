"""The blocking client of one node, and its sessions. It runs the coroutines of aio.py to their
ends.

It uses no loop and no extra thread: each call blocks its caller (channel.py).
"""

from collections.abc import Iterator

from tasuki.proto import inference_pb2 as pb
from tasuki.utils.tls import ClientTls

from .aio import AsyncSession, NodeCalls
from .answer import AnswerStream
from .cache_events import CacheWatch, EventBatch
from .channel import BlockingWire, open_channel, run
from .errors import RetryPolicy
from .moving_session import Move
from .prompt import ClientRequests, Prompt, SessionRequests


class Client(ClientRequests[AnswerStream]):
    """A client with one channel to a decode or fused daemon. Any thread may use it. Raises
    ClientError."""

    def __init__(
        self,
        target: str,
        *,
        tls: ClientTls | None = None,
        api_key: str = "",
        retry: RetryPolicy | None = None,
    ) -> None:
        """Open the channel. target: HOST:PORT. tls: None for plain text. api_key: empty for none.
        retry: rule for failed calls. Raises TlsError."""
        self._calls = NodeCalls(BlockingWire({"": open_channel(target, tls)}, api_key), retry)

    def _ask(self, request: pb.GenerateRequest, choices: int) -> AnswerStream:
        return AnswerStream(self._calls.answer(request, choices))

    def abort(self, request_id: str) -> None:
        """Abort a request, as AsyncClient.abort."""
        run(self._calls.abort(request_id))

    def open_session(self, cache_salt: bytes = b"") -> "Session":
        """Open a conversation, as AsyncClient.open_session."""
        return Session(run(self._calls.open_session(cache_salt)))

    def stats(self) -> pb.StatsResponse:
        """Return the node's counts of pages and slots, as AsyncClient.stats."""
        return run(self._calls.stats())

    def explain(self, request_id: str) -> pb.ExplainResponse:
        """Return the report on an ended request, as AsyncClient.explain."""
        return run(self._calls.explain(request_id))

    def flush(self) -> int:
        """Drop the unused cached states of the node, as AsyncClient.flush."""
        return run(self._calls.flush())

    def watch_cache(self, stream: str = "usable") -> Iterator[EventBatch]:
        """Yield the changes of the node's cache, as AsyncClient.watch_cache."""
        watch = CacheWatch(self._calls.wire, stream)
        try:
            while (batch := run(watch.next_batch())) is not None:
                yield batch
        finally:
            watch.cancel()

    def close(self) -> None:
        run(self._calls.close())

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Session(SessionRequests[AnswerStream]):
    """A conversation with its tokens on the server; each call sends only new input.

    One thread at a time. `with` closes it.
    """

    def __init__(self, session: AsyncSession) -> None:
        """Wrap an asyncio session. session: a session over a BlockingWire."""
        self._session = session

    @property
    def id(self) -> str:
        """Return the node's id of the session, as AsyncSession.id."""
        return self._session.id

    @property
    def moves(self) -> tuple[Move, ...]:
        """Return the session's moves between nodes so far, as AsyncSession.moves."""
        return self._session.moves

    @property
    def node(self) -> str:
        """Return the node's address, as AsyncSession.node."""
        return self._session.node

    def append(self, prompt: Prompt) -> int:
        """Add a prompt to the conversation, as AsyncSession.append."""
        return run(self._session.append(prompt))

    def _ask(self, request: pb.SessionGenerateRequest) -> AnswerStream:
        return AnswerStream(self._session.answer(request))

    def fork(self) -> "Session":
        """Return a second session with the same conversation, as AsyncSession.fork."""
        return Session(run(self._session.fork()))

    def close(self) -> None:
        run(self._session.close())

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
