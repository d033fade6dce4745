"""What one engine does with a request."""

from enum import Enum


class Role(Enum):
    """PREFILL stops after the first token and hands over; DECODE takes hand-overs and prefills what
    is short or orphaned; FUSED does everything in one process."""

    PREFILL = "prefill"
    DECODE = "decode"
    FUSED = "fused"

    @property
    def working_slots(self) -> int:
        """Decoding alternates between two, so that the state one step back is intact."""
        return 1 if self is Role.PREFILL else 2
