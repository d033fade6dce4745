"""`python -m scripts.docs.error_table`: writes the table of docs/errors.md, generated from the
error classes.

Pure functions. Lists every ServerError defined by its imports.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasuki.engine.messages.types import ErrorKind, RequestError
from tasuki.server.errors import (
    InvalidField,
    RateLimited,
    RequestRejected,
    Retry,
    ServerError,
    error_classes,
)
from tasuki.server.http.errors import error_body, error_status

_REJECTED = {
    ErrorKind.INVALID: "The engine refused the request: its prompt is empty or invalid.",
    ErrorKind.TOO_LONG: "The engine's memory or the model's context cannot hold it.",
    ErrorKind.DRAINING: "The node takes no new requests: it is being stopped or changes its role.",
    ErrorKind.QUEUE_TIMEOUT: "Its prompt did not begin within `--queue-timeout` or its deadline.",
    ErrorKind.OVERLOADED: "It is expected to miss its targets, or the node's `--ttft-target`.",
    ErrorKind.NOT_HANDED_BACK: "The session's cached entries did not reach a prefill node.",
    ErrorKind.PICTURE_GONE: "A session's picture must be computed again, and its file was dropped.",
    ErrorKind.INTERNAL: "A forward failed or the engine died; the node's log has the cause.",
}

_HEAD = """\
| kind | gRPC status | HTTP | code over HTTP | retry | when |
| --- | --- | --- | --- | --- | --- |
"""


@dataclass(frozen=True)
class Row:
    kind: str
    status: str
    http: int
    code: str
    retry: Retry
    meaning: str


def rows() -> list[Row]:
    """Return one row for each error kind, from its first class, sorted by status, then by kind."""
    found: dict[str, Row] = {}
    for error, meaning in _errors():
        code = error_body(error)["error"]["code"]
        row = Row(error.kind, error.status.name, error_status(error), code, error.retry, meaning)
        found.setdefault(error.kind, row)
    return sorted(found.values(), key=lambda row: (row.http, row.kind))


def table() -> str:
    """Return the Markdown table of errors, with a row for each kind."""
    lines = (
        f"| `{row.kind}` | {row.status} | {row.http} | `{row.code}` | `{row.retry.value}` "
        f"| {row.meaning} |\n"
        for row in rows()
    )
    return _HEAD + "".join(lines)


def _errors() -> Iterator[tuple[ServerError, str]]:
    for kind_of in error_classes():
        if "kind" in vars(kind_of):
            yield _blank(kind_of), " ".join((kind_of.__doc__ or "").split())
    for kind, meaning in _REJECTED.items():
        yield RequestRejected(RequestError(kind, "")), meaning


def _blank(kind_of: type[ServerError]) -> ServerError:
    if issubclass(kind_of, RateLimited):
        return kind_of("", 0)
    return kind_of("", "") if issubclass(kind_of, InvalidField) else kind_of("")


if __name__ == "__main__":
    print(table(), end="")
