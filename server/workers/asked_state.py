"""Sessions and stored responses of the node, for a front worker that asks its registry for them."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from tasuki.server.auth.caller import Caller
from tasuki.server.auth.request_context import RequestContext
from tasuki.server.responses.stored_responses import Keep, StoredResponse, StoredValues
from tasuki.server.sessions.session_store import Tail
from tasuki.server.sessions.turns import Appended, LogEnd, SessionInput, TurnPrompt

from . import messages as w
from .registry_link import RegistryLink


class AskedSessions:
    """As Sessions. One event loop's thread."""

    def __init__(self, link: RegistryLink) -> None:
        self._link = link

    async def end(self, caller: Caller, session_id: str) -> LogEnd:
        reply: w.LogEndRead = await self._link.ask(
            w.ReadLogEnd(self._link.number(), caller, session_id)
        )
        return reply.end

    async def append(
        self, caller: Caller, session_id: str, after: Tail, added: SessionInput
    ) -> Appended:
        reply: w.AppendedToLog = await self._link.ask(
            w.AppendToLog(self._link.number(), caller, session_id, after, added)
        )
        return reply.appended

    @asynccontextmanager
    async def turn(
        self, caller: Caller, tenant: str | None, session_id: str
    ) -> AsyncIterator["_AskedTurn"]:
        link, begun = self._link, self._link.number()
        asked = link.ask(w.BeginTurn(begun, caller, tenant, session_id))
        try:
            reply: w.TurnBegun = await asked
        except BaseException:
            # Refused, or the client left: the caller waits for no reply.
            link.notify(w.EndTurn(link.number(), begun, None))
            raise
        turn = _AskedTurn(reply.prompt)
        try:
            yield turn
        except (asyncio.CancelledError, GeneratorExit):
            link.notify(w.EndTurn(link.number(), begun, turn.answer))
            raise
        except BaseException:
            await link.ask(w.EndTurn(link.number(), begun, turn.answer))
            raise
        # Sent before the wait: a client that leaves now keeps its turn.
        await link.ask(w.EndTurn(link.number(), begun, turn.answer))


class _AskedTurn:
    def __init__(self, prompt: TurnPrompt) -> None:
        self.prompt = prompt
        self.answer: tuple[int, ...] | None = None

    def keep(self, answer: Sequence[int]) -> None:
        self.answer = tuple(answer)


class AskedResponses:
    """As Responses."""

    unstored: Keep | None = None
    values: StoredValues | None = None

    def __init__(self, link: RegistryLink) -> None:
        """Build it on the link's event loop."""
        self._link = link
        self._loop = asyncio.get_running_loop()

    def put(self, context: RequestContext, response: StoredResponse) -> None:
        self._link.notify(w.KeepResponse(context, response))

    def get(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        """REQUIRES: a thread other than the loop's."""
        asking = self._found(context, response_id)
        return asyncio.run_coroutine_threadsafe(asking, self._loop).result()

    async def _found(self, context: RequestContext, response_id: str) -> StoredResponse | None:
        reply: w.ResponseFound = await self._link.ask(
            w.FindResponse(self._link.number(), context, response_id)
        )
        return reply.response
