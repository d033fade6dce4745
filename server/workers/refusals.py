"""Typed errors across a process: as the plain fields of `Refused`, and back. Pure."""

from collections.abc import Iterator

from tasuki.server.errors import InvalidField, RateLimited, RequestRejected, ServerError

from .messages import Refused


def refused(call: int, error: ServerError) -> Refused:
    return Refused(
        call,
        type(error).__name__,
        str(error),
        retry_after=error.retry_after if isinstance(error, RateLimited) else None,
        field=error.field if isinstance(error, InvalidField) else None,
        rejected=error.error if isinstance(error, RequestRejected) else None,
    )


def error_of(refusal: Refused) -> ServerError:
    """The same error: its class, message and fields."""
    if refusal.rejected is not None:
        return RequestRejected(refusal.rejected)
    if refusal.retry_after is not None:
        return RateLimited(refusal.message, refusal.retry_after)
    if refusal.field is not None:
        return InvalidField(refusal.field, refusal.message.removeprefix(f"{refusal.field} "))
    return _CLASSES[refusal.error](refusal.message)


def _all(kind: type[ServerError]) -> Iterator[type[ServerError]]:
    yield kind
    for narrower in kind.__subclasses__():
        yield from _all(narrower)


_CLASSES = {kind.__name__: kind for kind in _all(ServerError)}
