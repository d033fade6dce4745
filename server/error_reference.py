"""docs/errors.md, written from the errors themselves: python -m tasuki.server.error_reference

Pure functions. Lists every ServerError that its imports define.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from tasuki.engine.messages import ErrorKind, RequestError
from tasuki.server.http.errors import error_body, error_status

from .errors import RateLimited, RequestRejected, Retry, ServerError

_REJECTED = {
    ErrorKind.INVALID: "The engine refused the request: its prompt is empty or no prompt.",
    ErrorKind.TOO_LONG: "The engine's memory or the model's context cannot hold it.",
    ErrorKind.DRAINING: "The node takes no new requests: it is being stopped or changes its role.",
    ErrorKind.QUEUE_TIMEOUT: "Its prompt was not begun within `--queue-timeout`: too many wait.",
    ErrorKind.INTERNAL: "A forward failed or the engine died; the node's log has the cause.",
}

_HEAD = """\
# Errors

Written by `python -m tasuki.server.error_reference` from `server/errors.py`; a test compares.

Every refusal is a gRPC status whose message names the field and the mend. Its trailing metadata
carry the same for programs: `tasuki-error-kind` is the kind, `tasuki-retry` the hint below;
`rate_limited` adds `grpc-retry-pushback-ms`. Over HTTP
the body is OpenAI's `{"error": {message, type, param, code}}`; 429 and 503 carry `Retry-After`. A
call never ends with OK and half an answer: an answer is whole exactly where it ended with
`Finished` (gRPC) or a `finish_reason` (HTTP).

| kind | gRPC status | HTTP | code over HTTP | retry | when |
| --- | --- | --- | --- | --- | --- |
"""

_TAIL = """
## Retry hints

| hint | meaning |
| --- | --- |
| `never` | the same call would be refused again: mend it first |
| `later` | the same call may succeed here a moment later |
| `elsewhere` | another node may answer now, or this one once it is back |
| `reopen` | open the session again and replay the conversation; `tasuki.client` does it by itself |

## Statuses without a kind

| status | from | retry |
| --- | --- | --- |
| UNAVAILABLE | gRPC itself: nobody serves the address, or the connection broke | elsewhere |
| UNIMPLEMENTED | gRPC itself: a service that is none of ours | never |
| RESOURCE_EXHAUSTED | gRPC itself: a message over 32 MiB | never |
| DEADLINE_EXCEEDED, CANCELLED | the caller's deadline or cancellation | as the caller likes |
| HTTP 404, 405, 413, 415 | no such path or method; a body too large; not JSON, or encoded | never |
| HTTP 408, 421 | a body that stops on its way; a `Host` that is not served here | never |

Between nodes (`tasuki.handover.v1`) a decode node mends what fails by itself: see
`docs/hand-over.md`.
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
    """One a kind, the first class that has it: by status, then by kind."""
    found: dict[str, Row] = {}
    for error, meaning in _errors():
        code = error_body(error)["error"]["code"]
        row = Row(error.kind, error.status.name, error_status(error), code, error.retry, meaning)
        found.setdefault(error.kind, row)
    return sorted(found.values(), key=lambda row: (row.http, row.kind))


def page() -> str:
    """The whole of docs/errors.md."""
    lines = (
        f"| `{row.kind}` | {row.status} | {row.http} | `{row.code}` | `{row.retry.value}` "
        f"| {row.meaning} |\n"
        for row in rows()
    )
    return _HEAD + "".join(lines) + _TAIL


def _errors() -> Iterator[tuple[ServerError, str]]:
    for kind_of in _subclasses(ServerError):
        if "kind" in vars(kind_of):
            blank = RateLimited("", 0) if kind_of is RateLimited else kind_of("")
            yield blank, " ".join((kind_of.__doc__ or "").split())
    for kind, meaning in _REJECTED.items():
        yield RequestRejected(RequestError(kind, "")), meaning


def _subclasses(base: type[ServerError]) -> Iterator[type[ServerError]]:
    for kind_of in base.__subclasses__():
        yield kind_of
        yield from _subclasses(kind_of)


if __name__ == "__main__":
    print(page(), end="")
