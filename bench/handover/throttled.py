"""A link of a chosen rate in front of a faster one: each transfer is held until such a link would
have carried it.

The throttle is inside the sender, and a row that used it says so. Owns the imagined wire's clock.
Thread rule: as any transport. Invariant: bytes and notification leave for the real transport when
the imagined wire is through with them, in the order of their posting.
"""

import threading
import time
from dataclasses import dataclass

from ...transfer.descriptors import Pieces
from ...transfer.grain import Grain
from ...transfer.transports.base import (
    Endpoint,
    Pace,
    Region,
    Transfer,
    TransferState,
    Transport,
)


@dataclass(eq=False)
class _Held(Transfer):
    endpoint: Endpoint
    pieces: Pieces
    notification: bytes
    due: float
    real: Transfer | None = None


class ThrottledTransport(Transport):
    """bytes_per_second: None lets everything through at once."""

    def __init__(self, inner: Transport, bytes_per_second: float | None = None) -> None:
        self._inner = inner
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    @property
    def settle_seconds(self) -> float:
        return self._inner.settle_seconds

    @property
    def retry_seconds(self) -> float:
        return self._inner.retry_seconds

    @property
    def poll_seconds(self) -> float:
        return self._inner.poll_seconds

    def register(self, address: int, size: int, grain: Grain | None = None) -> Region:
        return self._inner.register(address, size, grain)

    def metadata(self) -> bytes:
        return self._inner.metadata()

    def connect(self, metadata: bytes) -> Endpoint:
        return self._inner.connect(metadata)

    def post(
        self,
        endpoint: Endpoint,
        pieces: Pieces,
        notification: bytes,
        pace: Pace = Pace.BESIDE_COMPUTE,
    ) -> Transfer:
        rate = self.bytes_per_second
        if rate is None:
            return self._inner.post(endpoint, pieces, notification, pace)
        with self._lock:
            begins = max(time.monotonic(), self._free_at)
            self._free_at = begins + float(pieces[:, 2].sum()) / rate
            return _Held(endpoint, pieces, notification, self._free_at)

    def poll(self, transfer: Transfer) -> TransferState:
        if not isinstance(transfer, _Held):
            return self._inner.poll(transfer)
        if transfer.real is None:
            if time.monotonic() < transfer.due:
                return TransferState.PENDING
            # What is left of its time is the real link's own.
            transfer.real = self._inner.post(
                transfer.endpoint, transfer.pieces, transfer.notification, Pace.ALONE
            )
        return self._inner.poll(transfer.real)

    def release(self, transfer: Transfer) -> None:
        if not isinstance(transfer, _Held):
            self._inner.release(transfer)
        elif transfer.real is not None:
            self._inner.release(transfer.real)

    def notifications(self) -> list[bytes]:
        return self._inner.notifications()

    def sever(self) -> None:
        self._inner.sever()

    def disconnect(self, endpoint: Endpoint) -> None:
        self._inner.disconnect(endpoint)

    def close(self) -> None:
        self._inner.close()
