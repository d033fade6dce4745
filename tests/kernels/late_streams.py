"""Simulated streams of a GPU. A copy is made only when a caller waits for it, so a caller that does
not wait finds the old content."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from tasuki.engine.tiers import host_memory
from tasuki.engine.tiers.copy_job import Moves, run_moves
from tasuki.engine.tiers.gpu import gpu_copies
from tasuki.engine.tiers.gpu import gpu_copies as gpu_loads


class LateCopies:
    """All requested copies, from all streams; the oldest is made first."""

    def __init__(self) -> None:
        self._asked: list[Callable[[], None]] = []
        self._made = 0
        self._making = threading.Lock()

    def ask(self, source: torch.Tensor, target: torch.Tensor, moves: Moves) -> None:
        """Request a copy as run_moves() does."""
        self._asked.append(lambda: run_moves(source, target, moves))

    @property
    def asked(self) -> int:
        return len(self._asked)

    def make(self, count: int) -> None:
        """Make the first `count` copies."""
        with self._making:
            while self._made < count:
                self._asked[self._made]()
                self._made += 1


class NoPinning:
    def pin(self, address: int, size: int) -> None:
        return

    def let_go(self, address: int) -> None:
        return


def put_in_place(monkeypatch: pytest.MonkeyPatch) -> LateCopies:
    """Replace CUDA's streams, events and pinned memory."""
    copies = LateCopies()

    class Event:
        def __init__(self, blocking: bool) -> None:
            self._behind = 0

        def record(self) -> None:
            self._behind = copies.asked

        def synchronize(self) -> None:
            copies.make(self._behind)

    class Stream:
        def __init__(self, device: torch.device, priority: int) -> None:
            pass

        def wait_event(self, event: Event) -> None:
            event.synchronize()

        def synchronize(self) -> None:
            copies.make(copies.asked)

    made = torch.empty

    def empty(*arguments: Any, pin_memory: bool = False, **named: Any) -> torch.Tensor:
        return made(*arguments, **named)

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)
    monkeypatch.setattr(torch, "empty", empty)
    monkeypatch.setattr(host_memory, "CudaPinning", NoPinning)
    for module in (gpu_copies, gpu_loads):
        monkeypatch.setattr(module, "batched_moves", lambda: copies.ask)
    return copies
