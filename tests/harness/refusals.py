"""Checks of rejected calls: by gRPC, and as the project's client raises them."""

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
    """A call's rejection by gRPC. kind: error kind named by the server; empty if it named none.
    trailing: the whole trailing metadata."""

    status: grpc.StatusCode
    kind: str
    message: str
    trailing: dict[str, str]

    @property
    def typed(self) -> tuple[grpc.StatusCode, str]:
        """The gRPC status of a rejection and its error kind."""
        return self.status, self.kind


def refusal(method: Callable[..., Any], *arguments: Any, **options: Any) -> Refusal:
    """Make a call gRPC must reject, and return its rejection. A stream is read to its end."""
    with pytest.raises(grpc.RpcError) as refused:
        answer = method(*arguments, **options)
        if isinstance(answer, Iterator):
            list(answer)
    error = refused.value
    trailing = dict(error.trailing_metadata() or ())
    return Refusal(error.code(), trailing.get(ERROR_KIND_KEY, ""), error.details() or "", trailing)


@contextmanager
def refused_as(kind: str, match: str | None = None) -> Iterator[None]:
    """Check the error of a block: a ClientError of this kind. match: pattern its text must contain,
    if given."""
    with pytest.raises(ClientError, match=match) as refused:
        yield
    assert refused.value.kind == kind
