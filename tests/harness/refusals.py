"""Rejections of calls: by gRPC, and as the project's client raises them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from tasuki.client.errors import ClientError
from tasuki.server.errors import ERROR_KIND_KEY

INVALID = grpc.StatusCode.INVALID_ARGUMENT


@dataclass(frozen=True)
class Refusal:
    """A rejection by gRPC. kind: empty if the server named none. trailing: the whole trailing
    metadata."""

    status: grpc.StatusCode
    kind: str
    message: str
    trailing: dict[str, str]

    @property
    def typed(self) -> tuple[grpc.StatusCode, str]:
        """The status and the kind."""
        return self.status, self.kind


def refusal(method: Callable[..., Any], *arguments: Any, **options: Any) -> Refusal:
    """Return the rejection of a call that gRPC must reject. A stream is read to its end."""
    with pytest.raises(grpc.RpcError) as refused:
        answer = method(*arguments, **options)
        if isinstance(answer, Iterator):
            list(answer)
    error = refused.value
    trailing = dict(error.trailing_metadata() or ())
    return Refusal(error.code(), trailing.get(ERROR_KIND_KEY, ""), error.details() or "", trailing)


@contextmanager
def refused_as(kind: str, match: str | None = None) -> Iterator[None]:
    """Assert that the block ends with a ClientError of this kind. Its text must contain `match`, if
    given."""
    with pytest.raises(ClientError, match=match) as refused:
        yield
    assert refused.value.kind == kind
