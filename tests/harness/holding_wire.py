"""A loopback transport posting held writes by itself at layer ticks, like a GPU's transport. It is
the reference of the compiled code (cpp_cache/dataplane/peer_writer.h), so the sender's part is
tested without a GPU.

Owns a thread waiting for ticks. Thread rule: like any transport's.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from tasuki.pycache._cpp_cache import Bell
from tasuki.transfer.chunks.digest import Digester
from tasuki.transfer.errors import TransportError
from tasuki.transfer.transports.base import (
    Endpoint,
    HeldTransfer,
    HeldWrite,
    Holding,
    Transfer,
    TransferState,
)
from tasuki.transfer.transports.loopback import Faults, LoopbackFabric, LoopbackTransport, no_faults


@dataclass
class _Digest:
    answer: int | Exception | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None

    def result(self) -> int:
        assert self.answer is not None
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@dataclass(eq=False)
class _Held(HeldTransfer):
    endpoint: Endpoint
    held: HeldWrite
    holding: Holding
    answer: _Digest = field(default_factory=_Digest)
    posted: Transfer | None = None
    dropped: bool = False
    cancelled: bool = False
    error: TransportError | None = None
    at: float | None = None
    ended: float | None = None

    @property
    def posted_at(self) -> float | None:
        return self.at

    @property
    def ended_at(self) -> float | None:
        return self.ended

    @property
    def digest(self) -> Any:
        return self.answer


class HoldingWire(LoopbackTransport):
    """A transport holding each write until its tick."""

    def __init__(self, fabric: LoopbackFabric, name: str, faults: Faults = no_faults) -> None:
        super().__init__(fabric, name, faults)
        self.posts: list[tuple[int, int, int]] = []
        """For each posted held write: the transfer id, the layer chunk's tick, and the counter's
        value at its post."""
        self._changed = threading.Lock()
        self._held: list[_Held] = []
        self._flying: list[_Held] = []
        self._bells: list[Bell] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def ring_at_ends(self, bell: Bell) -> None:
        self._bells.append(bell)

    def rings(self, endpoint: Endpoint) -> bool:
        return True

    def holds(self, endpoint: Endpoint) -> bool:
        return True

    def hold(
        self, endpoint: Endpoint, writes: Sequence[HeldWrite], holding: Holding
    ) -> list[HeldTransfer | Exception]:
        made = [_Held(endpoint, write, holding) for write in writes]
        with self._changed:
            self._held += made
        return [*made]

    def cancel(self, transfer: HeldTransfer) -> None:
        assert isinstance(transfer, _Held)
        transfer.cancelled = True

    def poll(self, transfer: Transfer) -> TransferState:
        if not isinstance(transfer, _Held):
            return super().poll(transfer)
        if transfer.error is not None:
            raise transfer.error
        if transfer.dropped:
            return TransferState.DROPPED
        return TransferState.PENDING if transfer.ended is None else TransferState.DONE

    def release(self, transfer: Transfer) -> None:
        if not isinstance(transfer, _Held):
            super().release(transfer)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        super().close()

    def _run(self) -> None:
        while not self._over.wait(0.0002):
            with self._changed:
                held, self._held = self._held, []
            waiting = [each for each in held if not self._post_if_ready(each)]
            with self._changed:
                self._held = waiting + self._held
            self._flying = [each for each in self._flying if not self._has_ended(each)]
            if len(waiting) < len(held):
                self._ring()

    def _ring(self) -> None:
        for bell in self._bells:
            bell.ring()

    def _post_if_ready(self, each: _Held) -> bool:
        """Post the write if its tick has come. Returns True if it is no longer held."""
        value = each.holding.steps.value
        if each.cancelled:
            each.dropped = True
            return True
        if value < each.held.tick:
            return False
        if not each.holding.lease.holds:
            each.dropped = True
            return True
        each.at = time.monotonic()
        self.posts.append((each.held.chunk.transfer_id, each.held.tick, value))
        try:
            write = each.held.write
            each.posted = super().post(each.endpoint, write.segments, write.notification)
        except TransportError as error:
            each.error = error
            return True
        digester: Any = each.holding.digester
        try:
            (each.answer.answer,) = digester.digest_all([each.held.chunk])
        except Exception as error:
            each.answer.answer = error
        self._flying.append(each)
        return True

    def _has_ended(self, each: _Held) -> bool:
        assert each.posted is not None
        try:
            if super().poll(each.posted) is TransferState.PENDING:
                return False
        except TransportError as error:
            each.error = error
        else:
            each.ended = time.monotonic()
        self._ring()
        return True


def digests_beside_transfers(digester: Digester) -> Digester:
    """Return the digester changed to behave like a GPU's, called by the transport itself."""

    class OfGpu(type(digester)):  # type: ignore[misc]
        @property
        def of_gpu(self) -> Any:
            return self

    digester.__class__ = OfGpu
    return digester
