"""Conversations among what the node stores for its callers.

Has no memory of its own: they count among stored responses, within the same bounds. Any thread.
"""

from tasuki.server.auth.request_context import RequestContext
from tasuki.server.http.errors import HttpRefusal
from tasuki.server.responses.stored_responses import StoredResponse, StoredValues

from .conversation import Conversation, ConversationItem
from .conversation_items import output_items


class ConversationStore:
    def __init__(self, values: StoredValues) -> None:
        self._values = values

    def get(self, context: RequestContext, name: str) -> Conversation:
        """Return the caller's. Raises HttpRefusal where there is none."""
        found = self._values.find(context, name)
        if not isinstance(found, Conversation):
            raise HttpRefusal(
                404, "conversation_not_found", f"conversation {name!r:.100} is not stored here"
            )
        return found

    def put(self, context: RequestContext, conversation: Conversation) -> None:
        """Store it in place of the one of its id. Raises HttpRefusal where it does not fit, and
        then the one before is as it was."""
        if not self._values.put(context, conversation):
            raise HttpRefusal(
                400,
                "conversation_too_large",
                "the conversation is larger than what this node stores for a caller: begin another "
                "one, or raise --response-store-mib",
            )

    def delete(self, context: RequestContext, name: str) -> None:
        """Raises as get()."""
        self.get(context, name)
        self._values.delete(context, name)

    def add_response(
        self,
        context: RequestContext,
        asked: Conversation,
        given: tuple[ConversationItem, ...],
        response: StoredResponse,
    ) -> None:
        """Add a response's input and output to its conversation, if it is still there. asked: the
        conversation that the response was made of."""
        now = self._values.find(context, asked.id)
        if not isinstance(now, Conversation):
            return
        items = (*given, *output_items(response.body))
        # Where it has changed meanwhile, the response's tokens are not its own.
        turn = response.turn if now is asked else None
        self._values.put(context, now.answered(items, turn))
