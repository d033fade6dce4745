"""The two ends that every node of a pair is: a sender of what leaves its arena and a receiver of
what comes into it.

Owns both, over one data plane, which it only borrows. Knows no role: whether hand-overs leave and
pulls come, or the other way round, is the node's. Thread rule: start and stop block, once each,
on any thread that may wait.
"""

from dataclasses import dataclass

from tasuki.transfer.receiving.receiver import Receiver
from tasuki.transfer.sending.sender import Sender, SenderSettings
from tasuki.transfer.windows.step_counter import StepCounter
from tasuki.utils.lock_turns import shorten_lock_turns

from .data_plane import DataPlane


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
        shorten_lock_turns()
        self.receiver.start()
        self.sender.start()

    def stop(self) -> None:
        """The sender first: nothing that it posted may outlive this node's memory."""
        self.sender.stop()
        self.receiver.stop()
