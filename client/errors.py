"""The errors raised by a client, and the retries of a failed call."""

import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

import grpc


class ClientError(Exception):
    """A call was rejected or lost. status: the gRPC status. kind: the error's name for programs
    (docs/errors.md); None if the server did not report the failure. retry_after: seconds to wait
    before a retry; None if the server set none."""

    def __init__(
        self,
        message: str,
        status: grpc.StatusCode,
        kind: str | None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.retry_after = retry_after


class LaunchError(RuntimeError):
    """A daemon did not become ready. The message has the end of its output."""


def client_error(error: grpc.RpcError) -> ClientError:
    """Return gRPC's error as a ClientError. error: from blocking or asyncio calls."""
    if not isinstance(error, grpc.Call | grpc.aio.AioRpcError):
        return ClientError(str(error), grpc.StatusCode.UNKNOWN, None)
    trailing: dict[str, str | bytes] = dict(error.trailing_metadata() or ())  # type: ignore[arg-type]
    kind = trailing.get("tasuki-error-kind")
    pushback = trailing.get("grpc-retry-pushback-ms")
    message = f"{error.details() or error.code().name} ({error.code().name})"
    return ClientError(
        message,
        error.code(),
        kind.decode() if isinstance(kind, bytes) else kind,
        None if pushback is None else int(pushback) / 1000,
    )


_TRANSIENT_KINDS = frozenset(
    {
        *("draining", "unknown_session", "not_served_here", "picture_gone"),
        *("session_limit", "request_limit", "watcher_limit", "socket_limit"),
    }
)
# A stopping node cancels calls arriving meanwhile. A call cancelled by its caller is not retried.
_TRANSIENT_STATUS = frozenset({grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED})


@dataclass(frozen=True)
class RetryPolicy:
    """The rule for retrying failed calls. attempts: number of calls, the first included.
    first_pause: seconds before the second attempt; the pause doubles, with jitter, up to
    longest_pause. deadline: seconds until the last start of a new attempt."""

    attempts: int = 5
    first_pause: float = 0.1
    longest_pause: float = 5.0
    deadline: float = 60.0

    def pauses(self) -> Iterator[float]:
        """Yield the seconds to wait before each further attempt. Ends when no attempt is left, or
        at the deadline."""
        begun = time.monotonic()
        pause = self.first_pause
        for _ in range(self.attempts - 1):
            if time.monotonic() - begun + pause > self.deadline:
                return
            # The jitter spreads the return of clients that lost one node together.
            yield pause * random.uniform(0.5, 1.0)
            pause = min(2 * pause, self.longest_pause)


def next_pause(pauses: Iterator[float], error: ClientError) -> float:
    """Return the seconds to wait before another attempt. pauses: from RetryPolicy.pauses(). Raises
    `error` if a retry is useless or no attempt is left."""
    pause = next(pauses, None) if is_transient(error) else None
    if pause is None:
        raise error
    return pause


def is_transient(error: ClientError) -> bool:
    """Return True if a retry of the call may succeed, on another node or on this node later. An
    unknown session and a lost picture count too: the client rebuilds the session."""
    return error.status in _TRANSIENT_STATUS or error.kind in _TRANSIENT_KINDS
