"""Transfers announced by a gateway: its call to this node and the decode node's Reserve meet in
either order. The gateway may call both nodes in parallel.

Owns the waiting calls, and the calls with an open transfer. Knows neither gRPC nor the gateway's
protocol. A call is an engine's Submit and is answered like one, with the transfer's first token and
its end. Thread rule: the event loop.

Invariants: every call ends; a waiting call ends after `patience` seconds at the latest. A call with
a lost transfer ends with ABORT and no error, because the decode node then answers without it. Both
sides must send the same prompt.
"""

import asyncio
import time
from collections.abc import AsyncGenerator

import numpy as np

from tasuki.engine import messages as m
from tasuki.prefill_node.transfers import OutgoingTransfer
from tasuki.server.auth.callers import Caller
from tasuki.server.auth.tenants import RequestContext, visible_end
from tasuki.server.errors import DuplicateRequest, InvalidRequest, RequestRejected
from tasuki.server.unread_answer import AnswerPart
from tasuki.transfer.errors import DuplicateTransfer
from tasuki.transfer.lifecycle import events as on
from tasuki.utils.loops import LoopLost, LoopThread

PATIENCE_SECONDS = 10.0


class GatewayCall:
    """Call of a gateway for one prompt. `first`: future of the first token; None in it: there is
    none."""

    def __init__(self, submit: m.Submit, transfer_id: m.TransferId) -> None:
        self.submit = submit
        self.transfer_id = transfer_id
        self.first: asyncio.Future[m.PrefillToken | None] = (
            asyncio.get_running_loop().create_future()
        )

    def answer(self, token: m.PrefillToken | None) -> None:
        """Set the call's first token; None: the call ends without one. Idempotent."""
        if not self.first.done():
            self.first.set_result(token)


class GatewayTransfers:
    def __init__(self, patience: float = PATIENCE_SECONDS) -> None:
        """patience: limit in seconds of one side's wait for the other: the gateway's call, or the
        decode node's Reserve."""
        self._patience = patience
        self._parked: dict[m.TransferId, GatewayCall | OutgoingTransfer] = {}
        """First side of each transfer to arrive: the gateway's call or the decode node's transfer.
        It waits for the other side, its withdrawal, or the timeout."""
        self._patience_ends: dict[m.TransferId, asyncio.TimerHandle] = {}
        """Timeout timers of the waiting sides, by transfer. A timer is cancelled when its side's
        wait ends."""
        self._calls: dict[tuple[str, m.RequestId], GatewayCall] = {}
        self._open: dict[m.TransferId, GatewayCall] = {}

    async def generate(
        self, submit: m.Submit, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]:
        """Yield the first token, if the transfer has one, and then Finished. Raises InvalidRequest,
        DuplicateRequest.

        request_context: owner of the request id, and the part of the usage to show. The call counts
        against no limit on this node. The gateway calls the decode node too, and that call counts
        against the caller's limits. The decode node's Reserve has the trace and the salt.
        """
        begun = time.monotonic()
        if submit.gateway_transfer is None:
            raise InvalidRequest(
                "kv_bootstrap_info is missing: this prefill node answers only prompts whose decode "
                "node a gateway names; name this worker as a prefill worker"
            )
        owned = (request_context.caller.name, submit.request_id)
        if owned in self._calls:
            raise DuplicateRequest(f"request_id {submit.request_id!r} is in flight: use another")
        call = self._calls[owned] = GatewayCall(submit, submit.gateway_transfer.transfer_id)
        try:
            self._arrive(call)
            token = await call.first
        finally:
            del self._calls[owned]
            # An open room goes on: the decode node reports the end of its own call.
            self._withdraw(call.transfer_id, call)
        if token is not None:
            yield [
                m.TokenOut(
                    submit.request_id, token.token, token.logprob, token.margin, 0, token.top
                )
            ]
        yield visible_end(_finished(submit, token, time.monotonic() - begun), request_context)

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        """End this caller's call without a token. Idempotent. Does nothing for another caller's
        request."""
        call = self._calls.get((caller.name, request_id))
        if call is not None:
            call.answer(None)

    def receiver_arrived(self, transfer: OutgoingTransfer) -> None:
        """Match a transfer reserved by a decode node with the gateway's call, or let it wait for
        the call. Raises DuplicateTransfer for a second one."""
        parked = self._parked.get(transfer.id)
        if parked is None:
            self._park(transfer.id, transfer)
        elif isinstance(parked, GatewayCall):
            self._meet(parked, transfer)
        else:
            raise DuplicateTransfer(f"transfer {transfer.id} has arrived on the remote side before")

    def first_token(self, transfer_id: m.TransferId, token: m.PrefillToken) -> None:
        """Answer the gateway's call for this transfer with the first token, if the call is still
        open."""
        if (call := self._open.get(transfer_id)) is not None:
            call.answer(token)

    def over(self, transfer: OutgoingTransfer) -> None:
        """Handle a transfer's end: answer its gateway call without a token, if it is still
        unanswered. Without a call, forget the transfer waiting for one."""
        call = self._open.pop(transfer.id, None)
        if call is not None:
            call.answer(None)
        else:
            self._withdraw(transfer.id, transfer)

    def _arrive(self, call: GatewayCall) -> None:
        parked = self._parked.get(call.transfer_id)
        if parked is None:
            self._park(call.transfer_id, call)
        elif isinstance(parked, GatewayCall):
            raise InvalidRequest(
                f"kv_bootstrap_info.bootstrap_room: transfer {call.transfer_id} has arrived on the "
                "local side "
                "before"
            )
        else:
            self._meet(call, parked)

    def _meet(self, call: GatewayCall, transfer: OutgoingTransfer) -> None:
        self._unpark(transfer.id)
        if not np.array_equal(call.submit.prompt, transfer.prompt):
            transfer.put(on.Stopped("the gateway gave this node another prompt"))
            call.answer(None)
            return
        self._open[transfer.id] = call
        transfer.put(on.Met())

    def _park(self, transfer_id: m.TransferId, first: GatewayCall | OutgoingTransfer) -> None:
        self._parked[transfer_id] = first
        loop = asyncio.get_running_loop()
        self._patience_ends[transfer_id] = loop.call_later(
            self._patience, self._expire, transfer_id
        )

    def _expire(self, transfer_id: m.TransferId) -> None:
        """End the wait of the first side to arrive, because the other side did not come in time."""
        first = self._unpark(transfer_id)
        if isinstance(first, GatewayCall):
            first.answer(None)
        else:
            first.put(on.Missed())

    def _withdraw(self, transfer_id: m.TransferId, first: GatewayCall | OutgoingTransfer) -> None:
        """End the wait of one side for the other (the gateway's call or the decode node's
        transfer); no effect if it does not wait."""
        if self._parked.get(transfer_id) is first:
            self._unpark(transfer_id)

    def _unpark(self, transfer_id: m.TransferId) -> GatewayCall | OutgoingTransfer:
        self._patience_ends.pop(transfer_id).cancel()
        return self._parked.pop(transfer_id)


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


class GatewayAnswers:
    """Answers to gateway calls made on the front's event loop; the transfers live on the
    hand-over's loop.

    Keeps nothing. Thread rule: the front's event loop. It is otherwise like GatewayTransfers.
    """

    def __init__(self, transfers: GatewayTransfers, there: LoopThread) -> None:
        self._transfers = transfers
        self._there = there

    async def generate(
        self, submit: m.Submit, request_context: RequestContext
    ) -> AsyncGenerator[AnswerPart, None]:
        """Answer a gateway's call as GatewayTransfers does. Raises RequestRejected if the
        hand-over's event loop has died."""

        async def answer() -> list[AnswerPart]:
            return [part async for part in self._transfers.generate(submit, request_context)]

        try:
            # Token and end arrive together, so no client waits for the end.
            parts = await self._there.run(answer(), None)
        except LoopLost as error:
            raise RequestRejected(m.RequestError(m.ErrorKind.INTERNAL, str(error))) from error
        for part in parts:
            yield part

    def abort(self, request_id: m.RequestId, caller: Caller) -> None:
        self._there.loop.call_soon_threadsafe(self._transfers.abort, request_id, caller)
