"""Rooms that a gateway made: its call here and the decode node's Reserve find each
other, in whichever order they come.

Owns the calls that wait or whose room is open. Knows neither gRPC nor the gateway's protocol: a
call is an engine's Submit and is answered like one, with the room's first token and its end. Thread
rule: the event loop.
Invariants: every call ends, at the latest when patience does; a call whose room was lost ends with
ABORT and no error, since the decode node then answers without it; both sides must bring the same
prompt.
"""

import asyncio
import time
from collections.abc import AsyncGenerator

import numpy as np

from tasuki.engine import messages as m
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import RequestContext, visible_end
from tasuki.server.errors import DuplicateRequest, InvalidRequest
from tasuki.server.unread_answer import AnswerPart
from tasuki.transfer.errors import DuplicateRoom
from tasuki.transfer.protocol.rendezvous import Rendezvous, Side
from tasuki.transfer.rooms.room import Stopped

from .handover_room import GatewayArrived, GatewayMissing, OutgoingHandover

PATIENCE_SECONDS = 10.0


class GatewayCall:
    """What a gateway asked for; `first` is the room's first token, None where there is none."""

    def __init__(self, submit: m.Submit, room: m.RoomId) -> None:
        self.submit = submit
        self.room = room
        self.first: asyncio.Future[m.PrefillToken | None] = (
            asyncio.get_running_loop().create_future()
        )

    def answer(self, token: m.PrefillToken | None) -> None:
        """Idempotent."""
        if not self.first.done():
            self.first.set_result(token)


class GatewayRooms:
    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        """patience: seconds that whoever comes first waits for the other."""
        self._patience = patience
        self._rendezvous: Rendezvous[GatewayCall | OutgoingHandover] = Rendezvous(
            patience, time.monotonic
        )
        self._calls: dict[tuple[str, m.RequestId], GatewayCall] = {}
        self._open: dict[m.RoomId, GatewayCall] = {}

    async def generate(
        self, submit: m.Submit, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]:
        """The first token, if the room comes so far, and Finished. Raises InvalidRequest,
        DuplicateRequest.

        request_context: whose the id is, and how much of the usage is shown; no limit counts it
        here. The gateway asks the decode node as well, which counts the call against its caller's
        limits and whose Reserve names the trace and brings the salt.
        """
        begun = time.monotonic()
        if submit.gateway_room is None:
            raise InvalidRequest(
                "kv_bootstrap_info is missing: this prefill node answers only prompts whose decode "
                "node a gateway names; name this worker as a prefill worker"
            )
        owned = (request_context.caller.name, submit.request_id)
        if owned in self._calls:
            raise DuplicateRequest(f"request_id {submit.request_id!r} is in flight: use another")
        call = self._calls[owned] = GatewayCall(submit, submit.gateway_room.room)
        try:
            self._arrive(call)
            token = await call.first
        finally:
            del self._calls[owned]
            self._leave(call)
        if token is not None:
            yield [
                m.TokenOut(
                    submit.request_id, token.token, token.logprob, token.margin, 0, token.top
                )
            ]
        yield visible_end(_finished(submit, token, time.monotonic() - begun), request_context)

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        """Idempotent. Nothing happens where it is another's."""
        call = self._calls.get((caller.name, request_id))
        if call is not None:
            call.answer(None)

    def receiver_arrived(self, room: OutgoingHandover) -> None:
        """A decode node's Reserve expects a call of the gateway here too. Raises DuplicateRoom."""
        call = self._rendezvous.arrive(room.room, Side.REMOTE, room)
        if isinstance(call, GatewayCall):
            self._meet(call, room)
        else:
            self._expire_later()

    def first_token(self, room: m.RoomId, token: m.PrefillToken) -> None:
        """The room's first token."""
        if (call := self._open.get(room)) is not None:
            call.answer(token)

    def over(self, room: OutgoingHandover) -> None:
        """The room has ended, met or not."""
        call = self._open.pop(room.room, None)
        if call is not None:
            call.answer(None)
        else:
            self._rendezvous.withdraw(room.room, room)

    def _arrive(self, call: GatewayCall) -> None:
        try:
            room = self._rendezvous.arrive(call.room, Side.LOCAL, call)
        except DuplicateRoom as error:
            raise InvalidRequest(f"kv_bootstrap_info.bootstrap_room: {error}") from error
        if room is None:
            self._expire_later()
        elif not isinstance(room, GatewayCall):
            self._meet(call, room)

    def _meet(self, call: GatewayCall, room: OutgoingHandover) -> None:
        if not np.array_equal(call.submit.prompt, room.prompt):
            room.put(Stopped("the gateway gave this node another prompt"))
            call.answer(None)
            return
        self._open[room.room] = call
        room.put(GatewayArrived())

    def _leave(self, call: GatewayCall) -> None:
        """The gateway has its answer or listens no more. A room that is open goes on: of its own
        call's end the decode node reports itself."""
        self._rendezvous.withdraw(call.room, call)

    def _expire_later(self) -> None:
        # A little later, so that what was parked now has expired then.
        asyncio.get_running_loop().call_later(self._patience + 0.01, self._expire)

    def _expire(self) -> None:
        for waiting in self._rendezvous.expire():
            if isinstance(waiting.what, GatewayCall):
                waiting.what.answer(None)
            else:
                waiting.what.put(GatewayMissing())


def _finished(submit: m.Submit, token: m.PrefillToken | None, seconds: float) -> m.Finished:
    reason = m.FinishReason.ABORT if token is None else m.FinishReason.LENGTH
    usage = m.Usage(
        prompt_tokens=len(submit.prompt),
        completion_tokens=0 if token is None else 1,
        hit=None if token is None else token.hit,
        transfer=None,
        prefilled_on="local",
        local_fallback=False,
        time_to_first_token=seconds,
        seconds=seconds,
    )
    return m.Finished(submit.request_id, reason, usage)
