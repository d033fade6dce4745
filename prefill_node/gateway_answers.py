"""Rooms that a gateway made, asked for from the front's loop, where its calls arrive.

Keeps nothing. Thread rule: the front's event loop; the rooms live on the hand-over's.
"""

from collections.abc import AsyncGenerator

from tasuki.engine import messages as m
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import RequestContext
from tasuki.server.errors import RequestRejected
from tasuki.server.unread_answer import AnswerPart
from tasuki.utils.loops import LoopLost, LoopThread

from .gateway_rooms import GatewayRooms


class GatewayAnswers:
    """As GatewayRooms, which see."""

    def __init__(self, rooms: GatewayRooms, there: LoopThread) -> None:
        self._rooms = rooms
        self._there = there

    async def generate(
        self, submit: m.Submit, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]:
        """As GatewayRooms; raises RequestRejected where the rooms' loop has died."""

        async def answer() -> list[AnswerPart]:
            return [part async for part in self._rooms.generate(submit, request_context)]

        try:
            # Token and end come together, so that nobody waits for the second.
            parts = await self._there.run(answer(), None)
        except LoopLost as error:
            raise RequestRejected(m.RequestError(m.ErrorKind.INTERNAL, str(error))) from error
        for part in parts:
            yield part

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        self._there.loop.call_soon_threadsafe(self._rooms.abort, request_id, caller)
