"""What a command answers where no node does."""

from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from tasuki.client.errors import ClientError


@contextmanager
def asking(target: str) -> Iterator[None]:
    """Inside `with`, a call that reached no node raises a ClientError that has the target and the
    mend in place of gRPC's words. target: HOST:PORT."""
    try:
        yield
    except ClientError as error:
        # A node's own refusals have a kind.
        if error.status is not grpc.StatusCode.UNAVAILABLE or error.kind is not None:
            raise
        raise ClientError(
            f"nothing at {target} speaks tasuki's gRPC: is a node running there? Give the "
            "HOST:PORT that it announced as ready, and --ca where it has TLS",
            error.status,
            None,
        ) from error
