"""One side of a transfer on an event loop: its timer, its tasks, and its use of the sender and
receiver.

Owns the timer for the next check of deadlines and the tasks of slow actions. Decides nothing: the
pure sides of `transfer/lifecycle` do. Thread rule: the event loop; blocking calls run in a thread.

Invariants: an event costs no task and no timer. At most wake() seconds pass between two checks.
"""

import asyncio
import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Hashable, Iterator, Mapping
from concurrent.futures import Future
from functools import partial
from typing import Any, Generic, TypeVar

from tasuki.transfer.errors import DigestMismatch, TransferError
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle.actions import Action
from tasuki.transfer.lifecycle.events import Event
from tasuki.transfer.lifecycle.fence import FenceReason
from tasuki.transfer.lifecycle.receiving import Receiving
from tasuki.transfer.lifecycle.sending import Sending
from tasuki.transfer.lifecycle.stepping import SteppedSide
from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.reports import Drain, TransferEnd, TransferSent
from tasuki.transfer.sending.sender import Sender
from tasuki.utils.loops import GuardedTasks

from .writer_life import ConnectionBreaker, WriterLife

log = logging.getLogger(__name__)

_SOON = 1e-3
"""Tolerance in seconds: the timer moves only for a check due earlier by more than this."""


class DrivenTransfer(SteppedSide):
    def __init__(
        self, side: Receiving | Sending, name: str, named: Mapping[str, str | int]
    ) -> None:
        """Set the log's fields. name: start of the transfer's log lines. named: fields added to the
        log lines, for searches."""
        super().__init__(side, name)
        self.named = dict(named)
        self._loop = asyncio.get_running_loop()
        self._on_over: Callable[[Exception | None], None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: GuardedTasks | None = None

    @property
    def transfer_id(self) -> int:
        return self._side.transfer_id

    @property
    def generation(self) -> int:
        return self._side.generation

    def start(self, on_over: Callable[[Exception | None], None]) -> None:
        """Begin the transfer in the event loop's next turn. on_over: called at its end."""
        self._on_over = on_over
        self._loop.call_soon(self.begin)

    def now(self) -> float:
        return time.monotonic()

    def stepped(self) -> None:
        at = self._loop.time() + self._side.wake(self.now())
        if self._timer is not None and self._timer.when() > at + _SOON:
            self._timer.cancel()
            self._timer = None
        if self._timer is None:
            self._timer = self._loop.call_at(at, self._time_to_look)

    def _time_to_look(self) -> None:
        self._timer = None
        self.look()

    def run(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run slow work in a task; an error in it is put to the transfer as the event Broke."""
        if self._tasks is None:
            events = partial(_put_broke, self)
            self._tasks = GuardedTasks(self.name, events)
        self._tasks.start(work)

    def over(self, failure: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._tasks is not None:
            tasks, self._tasks = self._tasks, None
            self._loop.create_task(tasks.end())
        self.closed()
        if self._on_over is not None:
            on_over, self._on_over = self._on_over, None
            on_over(failure)

    @abstractmethod
    def closed(self) -> None:
        """Release the resources of the ended transfer, and answer the waiting callers."""


def _put_broke(transfer: DrivenTransfer, error: Exception) -> None:
    transfer.put(on.Broke(repr(error)))


class ReceivingTransfer(DrivenTransfer):
    """Transfer on its receiving side: a peer writes into granted pages and a slot of this node."""

    _side: Receiving

    def __init__(
        self,
        side: Receiving,
        receiver: Receiver,
        breaker: ConnectionBreaker,
        writer: WriterLife,
        landing: float,
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """landing: seconds from the sender's final status until the last layer chunk arrives."""
        super().__init__(side, name, named)
        self.writer = writer
        self._receiver = receiver
        self._breaker = breaker
        self._landing = landing

    @property
    def progress(self) -> int:
        """Return the number of the transfer's arrived layer chunks."""
        return self._receiver.chunks_arrived(self.transfer_id)

    def facts(self) -> on.Look:
        return on.Look(self.progress, writer=self.writer.facts())

    def perform(self, action: Action) -> Event | None:
        match action:
            case do.Expect(destination=destination):
                self._receiver.expect(self.transfer_id, self.generation, destination)
            case do.Forget():
                self._receiver.forget(self.transfer_id)
            case do.Verify():
                return self._verify(action)
            case do.Sever(reason=reason):
                self.run(partial(self._sever, reason))
            case do.TellFenced(reason=reason):
                log.info("%s is fenced: %s", self.name, reason.value)
                self.act(action)
            case do.TellLost(reason=why):
                log.warning("%s is lost: %s", self.name, why, extra=self.named)
                self.act(action)
            case _:
                return self.act(action)
        return None

    @abstractmethod
    def act(self, action: Action) -> Event | None:
        """Perform an action concerning the engine, the peer's stream or the connection."""

    def closed(self) -> None:
        self._receiver.forget(self.transfer_id)

    def _verify(self, action: do.Verify) -> Event | None:
        """Compare the digests immediately if all layer chunks have arrived. Otherwise compare them
        in a task, while the transfer's events go on."""
        try:
            if self._receiver.verify_arrived(self.transfer_id, self.generation, action.sent):
                return on.Verified()
        except TransferError as error:
            return _failure(error)
        self.run(partial(self._verify_later, action))
        return None

    async def _verify_later(self, action: do.Verify) -> None:
        verify = self._receiver.verify
        try:
            await asyncio.to_thread(
                verify, self.transfer_id, self.generation, action.sent, self._landing
            )
        except TransferError as error:
            self.put(_failure(error))
        else:
            self.put(on.Verified())

    async def _sever(self, reason: FenceReason) -> None:
        await self._breaker.end(self.writer, reason)
        self.put(on.Severed(reason))


def _failure(error: TransferError) -> on.Verified:
    return on.Verified(str(error), isinstance(error, DigestMismatch))


class SendingTransfer(DrivenTransfer):
    """Transfer on its sending side: this node writes layer chunks into a peer's pages and slot."""

    _side: Sending

    def __init__(
        self,
        side: Sending,
        connection: str,
        sender: Sender,
        name: str,
        named: Mapping[str, str | int],
    ) -> None:
        """connection: name of the connection to the peer, known to the sender."""
        super().__init__(side, name, named)
        self.connection = connection
        self._sender = sender

    @property
    def progress(self) -> int:
        """Return a count. It grows when a layer chunk is planned and when one is flushed."""
        return self._sender.progress(self.transfer_id)

    @property
    def endpoint_failed(self) -> bool:
        """Return True if another transfer of this connection would fail too."""
        return self._side.endpoint_failed

    def facts(self) -> on.Look:
        return on.Look(self.progress)

    def perform(self, action: Action) -> Event | None:
        match action:
            case do.Open(destination=destination):
                self._sender.open(
                    self.transfer_id, self.generation, self.connection, destination, self._on_end
                )
                return on.Opened()
            case do.DrainNow():
                drained = self._sender.abort(self.transfer_id, self.connection)
                drained.add_done_callback(self._on_drained)
                return None
        return self.act(action)

    @abstractmethod
    def act(self, action: Action) -> Event | None:
        """Perform an action concerning the engine or the peer's stream."""

    def _on_end(self, end: TransferEnd) -> None:
        self._loop.call_soon_threadsafe(self.put, _end_of(end))

    def _on_drained(self, drained: "Future[Drain]") -> None:
        self._loop.call_soon_threadsafe(self.put, on.Drained(drained.result()))


def _end_of(end: TransferEnd) -> Event:
    if isinstance(end, TransferSent):
        return on.Sent(end.report)
    return on.SendBroke(end.reason, end.drain, end.endpoint_failed)


Key = TypeVar("Key", bound=Hashable)
TransferT = TypeVar("TransferT", bound=DrivenTransfer)


class LiveTransfers(Generic[Key, TransferT]):
    """Live transfers of one kind, by key.

    Invariant: a transfer is held from start() until it is over. It is removed before the callback
    `over` is called.
    """

    def __init__(self, over: Callable[[TransferT, Exception | None], None] | None = None) -> None:
        """over: called with an ended transfer and its error, after its removal here. None as error:
        it ended without one."""
        self._over = over
        self._transfers: dict[Key, TransferT] = {}
        self._emptied = asyncio.Event()

    def __len__(self) -> int:
        return len(self._transfers)

    def __iter__(self) -> Iterator[TransferT]:
        """Iterate over a copy of the live transfers: some may end meanwhile."""
        return iter(list(self._transfers.values()))

    def get(self, key: Key) -> TransferT | None:
        return self._transfers.get(key)

    def start(self, key: Key, transfer: TransferT) -> None:
        """Begin the transfer in the event loop's next turn. REQUIRES: the key is free."""
        self._transfers[key] = transfer
        self._emptied.clear()
        transfer.start(lambda failure: self._end(key, transfer, failure))

    def _end(self, key: Key, transfer: TransferT, failure: Exception | None) -> None:
        del self._transfers[key]
        if not self._transfers:
            self._emptied.set()
        if self._over is not None:
            self._over(transfer, failure)

    async def end(self, patience: float) -> None:
        """Wait until all transfers are over; end the rest after `patience` seconds, unfenced."""
        if self._transfers:
            try:
                await asyncio.wait_for(self._emptied.wait(), patience)
            except TimeoutError:
                self.drop_all()

    def drop_all(self) -> None:
        """End every transfer in its present state, as the death of the node would."""
        for transfer in self:
            transfer.end()
