"""What one forward computes of one request, as the engine remembers it until the forward lands."""

from dataclasses import dataclass

from tasuki.engine.request import Active, PlannedCheckpoint, Request


@dataclass(slots=True)
class ScheduledSequence:
    """Tokens [start, stop) of a running request; checkpoints that fall into it, with their slots.

    The forward reads the working slot of index read_index and writes the one of write_index.
    num_sampled: tokens that it draws; some only where it reaches the last token there is. drafts:
    those of its tokens that nobody drew yet, its last ones; then it draws at most num_sampled, and
    how many of its tokens count shows when it lands. first_guesses: as many as there are drafts
    where the model's draft layer is to make them before the forward, and they stand for nothing
    yet. drafts_on_lane: whether they stand for those that the runner has. guesses: tokens that it
    is to propose behind what is drawn."""

    request: Request
    active: Active
    start: int
    stop: int
    read_index: int
    write_index: int
    num_sampled: int
    checkpoints: tuple[tuple[PlannedCheckpoint, int], ...] = ()
    drafts: tuple[int, ...] = ()
    first_guesses: int = 0
    drafts_on_lane: bool = False
    guesses: int = 0

    @property
    def write_slot(self) -> int:
        return self.active.slots[self.write_index]

    @property
    def lane(self) -> int:
        """Where the runner keeps the tokens drawn last: no two allocations share a working slot."""
        return self.active.slots[0]

    @property
    def decodes(self) -> bool:
        """Whether it is one token of an answer given here, so that it may run in a decode graph."""
        one = self.num_sampled > 0 and self.stop - self.start == 1
        return one and self.active.answers_here and not self.checkpoints

    @property
    def live(self) -> bool:
        """Whether the request still runs on the allocation that this was planned for."""
        state = self.request.state
        return isinstance(state, Active) and state.allocation is self.active.allocation
