"""What a command answers where no node does."""

from collections.abc import Iterator
from contextlib import contextmanager

MEND = "give the HOST:PORT of its HTTP or gRPC, as its start shows them, and --ca where it has TLS"


@contextmanager
def asking(target: str) -> Iterator[None]:
    """Inside `with`, a call that reached no node raises a ClientError that has the target and the
    mend in place of gRPC's words. target: HOST:PORT."""
    import grpc

    from tasuki.client.errors import ClientError

    try:
        yield
    except ClientError as error:
        # A node's own refusals have a kind.
        if error.status is not grpc.StatusCode.UNAVAILABLE or error.kind is not None:
            raise
        raise ClientError(
            f"nothing at {target} speaks tasuki's gRPC: is a node running there? If so, {MEND}",
            error.status,
            None,
        ) from error
