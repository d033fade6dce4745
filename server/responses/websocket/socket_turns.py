"""The last response of a WebSocket, which the next one goes on from though it is not stored.

Owns that response, and its count against its caller. One socket. Any thread reads; the event loop's
writes. Invariant: one response at most is kept, by its own bytes; where these are too many for its
caller, none is.
"""

from tasuki.server.auth.held_bytes import Hold
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.errors import ServerError
from tasuki.server.responses.stored_responses import Responses, StoredResponse, StoredValues


class SocketTurns:
    """As Responses, of which it has all."""

    def __init__(self, store: Responses, hold: Hold) -> None:
        """hold: of the response that is kept."""
        self._store = store
        self._hold = hold
        self._last: StoredResponse | None = None

    @property
    def values(self) -> StoredValues | None:
        return self._store.values

    def put(self, context: RequestContext, response: StoredResponse) -> None:
        self._store.put(context, response)
        self.unstored(context, response)

    def unstored(self, context: RequestContext, response: StoredResponse) -> None:
        """Keep it here alone."""
        self._last = None
        try:
            self._hold.resize(response.size)
        except ServerError:
            # The client sends the whole conversation then, as it would over a new socket.
            self._hold.resize(0)
        else:
            self._last = response

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        last = self._last
        if last is not None and last.id == response_id:
            return last
        return self._store.get(context, response_id)

    def drop(self, response_id: str | None) -> None:
        """Forget the last response, if it has this id: the one behind it failed."""
        if self._last is not None and self._last.id == response_id:
            self._last = None
            self._hold.resize(0)
