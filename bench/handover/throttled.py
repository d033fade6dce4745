"""A link of a chosen rate over a faster one: no transfer is done before such a link had carried it.

The throttle is inside the sender, and a row that used it is marked. It needs a transport that
reports the peer of a window in poll(), as peer_copy does: then nobody looks at bytes that came
early. Owns the imagined wire's clock. Thread rule: as any transport.
"""

import threading
import time
from dataclasses import dataclass
from typing import Any

from tasuki.transfer.transports.base import Endpoint, Transfer, TransferState, Transport
from tasuki.transfer.windows.descriptors import Pieces


@dataclass(eq=False)
class _Held(Transfer):
    real: Transfer
    due: float


class ThrottledTransport:
    """A Transport, but for its static type: what is not written here is the inner one's.
    bytes_per_second: None lets everything through at once."""

    def __init__(self, inner: Transport, bytes_per_second: float | None = None) -> None:
        self._inner = inner
        self.bytes_per_second = bytes_per_second
        self._free_at = 0.0
        self._lock = threading.Lock()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def post(self, endpoint: Endpoint, pieces: Pieces, notification: bytes) -> Transfer:
        transfer = self._inner.post(endpoint, pieces, notification)
        rate = self.bytes_per_second
        if rate is None:
            return transfer
        with self._lock:
            begins = max(time.monotonic(), self._free_at)
            self._free_at = begins + float(pieces[:, 2].sum()) / rate
            return _Held(transfer, self._free_at)

    def poll(self, transfer: Transfer) -> TransferState:
        if not isinstance(transfer, _Held):
            return self._inner.poll(transfer)
        if time.monotonic() < transfer.due:
            return TransferState.PENDING
        return self._inner.poll(transfer.real)

    def release(self, transfer: Transfer) -> None:
        self._inner.release(transfer.real if isinstance(transfer, _Held) else transfer)
