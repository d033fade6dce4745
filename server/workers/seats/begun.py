"""One ask that has begun something, as its seat keeps it."""

import asyncio
from dataclasses import dataclass, field

from tasuki.engine import messages as m

from .. import messages as w


@dataclass
class Begun:
    """An ask, and the task that holds what was asked for until the ask ends. end: the message that
    ends it, once that has come; an EnteredCall's is the table's to note."""

    ask: w.Reserve | w.BeginTurn | w.Enter
    end: asyncio.Future[w.Release | w.EndTurn] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    task: asyncio.Task[None] = field(init=False)


@dataclass
class EnteredCall(Begun):
    """A call whose requests ask to be let in. names: the engine's, of each answer; none before the
    grant. ended: places of the answers whose end was seen from the engine. waiting: the worker's
    Ends that are still to be answered."""

    ask: w.Enter
    names: tuple[m.RequestId, ...] = ()
    ended: set[int] = field(default_factory=set)
    waiting: list[w.End] = field(default_factory=list)

    @property
    def answers(self) -> int:
        """Return how many answers the call asks for."""
        return sum(len(submit.answer_ids) for submit in self.ask.submits)
