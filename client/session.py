"""The blocking client of one node, and the sessions that it opens: those of aio.py, run to the end.

No loop and no thread stands behind it: each call blocks its caller (channel.py).
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
        self._calls = NodeCalls(BlockingWire({"": open_channel(target, tls)}, api_key), retry)

    def _ask(self, request: pb.GenerateRequest, choices: int) -> AnswerStream:
        return AnswerStream(self._calls.answer(request, choices))

    def abort(self, request_id: str) -> None:
        """As AsyncClient.abort."""
        run(self._calls.abort(request_id))

    def open_session(self, cache_salt: bytes = b"") -> "Session":
        """As AsyncClient.open_session."""
        return Session(run(self._calls.open_session(cache_salt)))

    def stats(self) -> pb.StatsResponse:
        """As AsyncClient.stats."""
        return run(self._calls.stats())

    def explain(self, request_id: str) -> pb.ExplainResponse:
        """As AsyncClient.explain."""
        return run(self._calls.explain(request_id))

    def flush(self) -> int:
        """As AsyncClient.flush."""
        return run(self._calls.flush())

    def watch_cache(self, stream: str = "usable") -> Iterator[EventBatch]:
        """As AsyncClient.watch_cache."""
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
    """A conversation whose tokens the server keeps; each call sends only what is new.

    One thread at a time. `with` closes it.
    """

    def __init__(self, session: AsyncSession) -> None:
        """session: over a BlockingWire."""
        self._session = session

    @property
    def id(self) -> str:
        """As AsyncSession.id."""
        return self._session.id

    @property
    def moves(self) -> tuple[Move, ...]:
        """As AsyncSession.moves."""
        return self._session.moves

    @property
    def node(self) -> str:
        """As AsyncSession.node."""
        return self._session.node

    def append(self, prompt: Prompt) -> int:
        """As AsyncSession.append."""
        return run(self._session.append(prompt))

    def _ask(self, request: pb.SessionGenerateRequest) -> AnswerStream:
        return AnswerStream(self._session.answer(request))

    def fork(self) -> "Session":
        """As AsyncSession.fork."""
        return Session(run(self._session.fork()))

    def close(self) -> None:
        run(self._session.close())

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
