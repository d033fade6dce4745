"""The two ends that every node of a pair is: a sender of what leaves its arena and a receiver of
what comes into it.

Owns both, over one data plane, which it only borrows. Knows no role: whether hand-overs leave and
pulls come, or the other way round, is the node's. Thread rule: start and stop block, once each,
on any thread that may wait.
"""

import sys
from dataclasses import dataclass

from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.windows.step_counter import StepCounter

from .data_plane import DataPlane

_TURN_SECONDS = 0.0002
"""A thread that computes in Python keeps the interpreter's lock for so long where others wait for
it, by default 25 times that; a window costs the sender and the receiver several turns each."""


@dataclass(frozen=True)
class TransferEngine:
    sender: Sender
    receiver: Receiver

    @classmethod
    def over(
        cls,
        plane: DataPlane,
        steps: StepCounter,
        layers_per_window: int | None,
        lease_seconds: float,
    ) -> "TransferEngine":
        """steps: what the sender's windows wait for. The rest as in SenderSettings."""
        layout = plane.contract.layout
        settings = SenderSettings(layers_per_window=layers_per_window, lease_seconds=lease_seconds)
        return cls(
            Sender(layout, [plane.source(steps)], settings),
            Receiver(layout, [plane.target()]),
        )

    def start(self) -> None:
        """Also sets for how long any thread of this process keeps the interpreter's lock."""
        sys.setswitchinterval(min(sys.getswitchinterval(), _TURN_SECONDS))
        self.receiver.start()
        self.sender.start()

    def stop(self) -> None:
        """The sender first: nothing that it posted may outlive this node's memory."""
        self.sender.stop()
        self.receiver.stop()
