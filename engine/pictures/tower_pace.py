"""The pace of encodes: how many blocks of the tower run between two steps, and when they have
ended.

A host computes blocks at the call, so it runs them one by one and reads its clock. A GPU computes
them later. There the time of earlier parts says how many blocks fit, and CUDA events say when a
part has ended. Nothing waits for the device unless asked to.

Owns the measured speed. Thread rule: the engine loop's.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from tasuki.utils.signatures import Clock

_NEWEST = 0.5
"""Share of the newest part in the measured speed."""


class EncodePart(Protocol):
    """Some blocks of an encode, launched."""

    @property
    def has_ended(self) -> bool:
        """True once the device has computed them. Raises the device's errors."""

    @property
    def seconds(self) -> float:
        """Seconds of the device. REQUIRES: it has ended."""

    def wait(self) -> None:
        """Wait for the end, on this thread. Raises the device's errors."""


class TowerPace(Protocol):
    def blocks(self, flops: float, seconds: float) -> int:
        """Return the number of blocks of `flops` FLOPs each to launch for `seconds` seconds, at
        least one."""

    def begin(self) -> None:
        """Begin a part."""

    def end(self) -> EncodePart:
        """Return the part with the launches since begin()."""

    def measured(self, flops: float, seconds: float) -> None:
        """Learn from an ended part of `flops` FLOPs."""


@dataclass(frozen=True)
class _HostPart:
    seconds: float
    has_ended: bool = True

    def wait(self) -> None:
        """Do nothing: it has ended."""


class HostPace:
    """The pace of a CPU: one block at a time. clock: seconds."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._began = 0.0

    def blocks(self, flops: float, seconds: float) -> int:
        return 1

    def begin(self) -> None:
        self._began = self._clock()

    def end(self) -> EncodePart:
        return _HostPart(self._clock() - self._began)

    def measured(self, flops: float, seconds: float) -> None:
        """Do nothing: blocks run one by one."""


@dataclass(frozen=True)
class _DevicePart:
    began: torch.cuda.Event
    ended: torch.cuda.Event

    @property
    def has_ended(self) -> bool:
        return bool(self.ended.query())  # type: ignore[no-untyped-call]

    @property
    def seconds(self) -> float:
        return float(self.began.elapsed_time(self.ended)) / 1000

    def wait(self) -> None:
        self.ended.synchronize()


class DevicePace:
    """The pace of a GPU: as many blocks as fit, by the FLOPs a second of earlier parts. The first
    part has one block."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._flops_a_second = 0.0
        self._began: torch.cuda.Event | None = None

    def blocks(self, flops: float, seconds: float) -> int:
        return max(1, int(seconds * self._flops_a_second / flops))

    def begin(self) -> None:
        self._began = self._recorded()

    def end(self) -> EncodePart:
        assert self._began is not None, "begin() comes first"
        return _DevicePart(self._began, self._recorded())

    def measured(self, flops: float, seconds: float) -> None:
        if seconds <= 0:
            return
        newest, before = flops / seconds, self._flops_a_second or flops / seconds
        self._flops_a_second = before + _NEWEST * (newest - before)

    def _recorded(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event


def pace_of(device: torch.device, clock: Clock) -> TowerPace:
    """Return the pace of encodes on the device. clock: the host's."""
    return HostPace(clock) if device.type == "cpu" else DevicePace(device)
