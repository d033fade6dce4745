"""A stream that work of one thread goes to, apart from the engine's: launched there, waited for
there.

Owns which stream that is; knows nothing of the work. Thread rule: the thread that enters it.
Invariant: on a device without streams everything has ended when its call returns.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch


class OwnStream(Protocol):
    def entered(self) -> AbstractContextManager[object]:
        """What is launched inside goes to this stream."""

    def synchronize(self) -> None:
        """Return once nothing that was launched here runs or will. Raises what the device says
        where that cannot be known."""


class HostStream:
    def entered(self) -> AbstractContextManager[object]:
        return nullcontext()

    def synchronize(self) -> None:
        """Calls have returned, so nothing runs."""


class DeviceStream:
    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def entered(self) -> AbstractContextManager[object]:
        # The current device belongs to a thread.
        torch.cuda.set_device(self._device)
        stream: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return stream

    def synchronize(self) -> None:
        self._stream.synchronize()


def own_stream(device: torch.device) -> OwnStream:
    return HostStream() if device.type == "cpu" else DeviceStream(device)
