"""The errors that a client raises."""

import grpc


class ClientError(Exception):
    """A call was refused or lost. status: the gRPC status; kind: the error's name for
    programs (docs/errors.md), None where the failure is not the server's. retry_after: seconds to
    wait before a retry, None where the server set none."""

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
    """A daemon did not become ready; the message has the end of what it wrote."""


def client_error(error: grpc.RpcError) -> ClientError:
    """The typed form of what grpc raised, by blocking calls or asyncio's."""
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
