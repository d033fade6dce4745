"""What one forward computes of one request."""

from dataclasses import dataclass

from .request import Active, PlannedCheckpoint, Request


@dataclass(frozen=True)
class Work:
    """Tokens [start, stop) of a running request; checkpoints that fall into it, with their slots.

    The last token may still be in flight: drawn on the device, unknown here. The forward reads
    read_slot and writes the working slot of index write_index. samples: it reaches the last token
    there is, so that the next one can be drawn."""

    request: Request
    active: Active
    start: int
    stop: int
    read_slot: int
    write_index: int
    samples: bool
    checkpoints: tuple[tuple[PlannedCheckpoint, int], ...] = ()

    @property
    def write_slot(self) -> int:
        return self.active.lease.working_slots[self.write_index]

    @property
    def lane(self) -> int:
        """Where the device keeps the token drawn last: no two leases share a working slot."""
        return self.active.lease.working_slots[0]

    @property
    def decodes(self) -> bool:
        """Whether it is one token of an answer given here, so that it may run in a decode graph."""
        one = self.samples and self.stop - self.start == 1
        return one and self.active.answers_here and not self.checkpoints

    @property
    def known_tokens(self) -> list[int]:
        """Those of [start, stop) that this side knows: all, or all but the last."""
        return self.request.token_slice(self.start, self.stop)

    @property
    def live(self) -> bool:
        """Whether the request still runs on the lease that this was planned for."""
        state = self.request.state
        return isinstance(state, Active) and state.lease is self.active.lease
