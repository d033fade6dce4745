"""Transfers made by a gateway. Scripts show how its call and a decode node's Reserve are matched,
and how a transfer ends while it waits for the call."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from unittest.mock import Mock

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.prefill_node.gateway_transfers import GatewayTransfers
from tasuki.prefill_node.transfers import OutgoingTransfer
from tasuki.proto import handover_pb2 as pb
from tasuki.server.auth.callers import ANYBODY, Caller
from tasuki.server.auth.tenants import ANONYMOUS
from tasuki.server.errors import InvalidRequest
from tasuki.transfer.control.driven_transfer import LiveTransfers
from tasuki.transfer.lifecycle.events import Event, Missed, Stopped
from tasuki.transfer.lifecycle.messages import Abort
from tasuki.transfer.reports import Drain
from tasuki.transfer.sending.sender import Sender
from tests.harness.interaction import RealTime, Script, play, scripts

TRANSFER_ID = m.TransferId(77)
HIT = m.HitBreakdown(3, 0, 0, {"new": 3}, None)


class OneTransfer:
    """A decode node's Reserve, as far as GatewayTransfers uses it."""

    def __init__(self, number: int, prompt: np.ndarray, events: list[str]) -> None:
        self.id = m.TransferId(number)
        self.prompt = prompt
        self._events = events

    def put(self, event: object) -> None:
        self._events.append(type(event).__name__)


class GatewayWorld(RealTime):
    """The world of the scripts. Answers to calls are shown as `call NAME: ...`, events of transfers
    as `room 77: ...`."""

    def __init__(self) -> None:
        self._transfers = GatewayTransfers(5.0)
        self._reserved: dict[str, OneTransfer] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._came: dict[str, list[str]] = {}

    def came(self) -> dict[str, list[str]]:
        return {track: list(items) for track, items in self._came.items()}

    def taken(self) -> None:
        for items in self._came.values():
            items.clear()

    async def end(self) -> None:
        assert all(call.done() for call in self._calls.values())

    async def do(self, command: str, words: list[str], named: dict[str, str]) -> None:
        name, *rest = words
        match command:
            case "patience":
                self._transfers = GatewayTransfers(float(name))
            case "reserve":
                events = self._came.setdefault(f"room {name}", [])
                self._reserved[name] = OneTransfer(int(name), prompt_of(*rest), events)
                self._transfers.receiver_arrived(self._reserved[name])  # type: ignore[arg-type]
            case "call":
                transfer, prompt = rest
                gateway_transfer = m.GatewayTransfer(m.TransferId(int(transfer)), "127.0.0.1:1")
                self._call(name, prompt_of(prompt), gateway_transfer)
            case "call-without-room":
                self._call(name, prompt_of("1"), None)
            case "leave":
                self._calls[name].cancel()
                await asyncio.wait([self._calls[name]])
            case "first-token":
                token = m.PrefillToken(m.TransferId(int(name)), 9, -0.5, 1.0, HIT)
                self._transfers.first_token(token.transfer_id, token)
            case "over":
                self._transfers.over(self._reserved[name])  # type: ignore[arg-type]
            case "abort":
                caller = Caller(named["of"]) if named else ANYBODY
                self._transfers.abort(m.RequestId(name), caller)
            case _:
                raise LookupError(command)
        # A call takes its first step.
        await asyncio.sleep(0)

    def _call(self, name: str, prompt: np.ndarray, transfer: m.GatewayTransfer | None) -> None:
        submit = m.Submit(m.RequestId(name), prompt, SamplingParams(), gateway_transfer=transfer)
        answers = self._came.setdefault(f"call {name}", [])
        self._calls[name] = asyncio.create_task(self._answer(submit, answers))

    async def _answer(self, submit: m.Submit, answers: list[str]) -> None:
        try:
            async for part in self._transfers.generate(submit, ANONYMOUS):
                match part:
                    case [m.TokenOut(token=token)]:
                        answers.append(f"TokenOut({token})")
                    case m.Finished(reason=reason, usage=usage):
                        hit = ", hit" if usage.hit == HIT else ""
                        answers.append(f"Finished({reason.name}{hit})")
        except InvalidRequest as error:
            answers.append(f"InvalidRequest({error})")


def prompt_of(text: str) -> np.ndarray:
    return np.array(text.split(","), dtype=np.int32)


@asynccontextmanager
async def gateway() -> AsyncIterator[GatewayWorld]:
    yield GatewayWorld()


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, gateway)


@pytest.mark.parametrize(
    ("event", "said"),
    [
        (Missed(), "failed"),
        (Abort(), "aborted"),
        (Stopped("the node shuts down"), "failed"),
    ],
)
async def test_a_parked_room_ends_without_having_asked_the_engine(event: Event, said: str) -> None:
    posted: list[m.Inbox] = []
    outgoing: list[pb.SenderMessage] = []
    transfer_request = m.TransferRequest(TRANSFER_ID, 1, 0, SamplingParams(), b"")
    transfer = OutgoingTransfer(
        m.PrefillReserve(transfer_request, np.ones(3, dtype=np.int32)),
        "connection",
        posted.append,
        Mock(spec=Sender),
        0.01,
        Mock(),
        outgoing.append,
        awaits_gateway=True,
    )
    transfers: LiveTransfers[m.TransferId, OutgoingTransfer] = LiveTransfers()
    transfers.start(TRANSFER_ID, transfer)
    # Nothing is computed, however long it takes.
    await asyncio.sleep(0.05)
    assert not posted
    transfer.put(event)
    assert not len(transfers)
    assert [message.WhichOneof("message") for message in outgoing] == [said]
    assert posted == [m.PrefillEnd(TRANSFER_ID)] and transfer.ended.result() is Drain.DRAINED
