"""One hand-over as a decode engine sees it. States are types; an illegal move raises.

Asked -> Wanted -> Granted -> Ready -> Done -> Over is the straight line; Done is passed over where
no early step runs by then. Where the first token is the answer it is Asked -> Bare -> Over. What
was granted to a hand-over that is lost is Quarantined until its
writer is fenced, and Fenced where the room's own early step may still write then.
"""

from dataclasses import dataclass, field

from tasuki.engine.handover.early.early_step import EarlyStep
from tasuki.engine.messages import HitBreakdown, RemoteDone, RoomId
from tasuki.engine.request import IllegalMove, Request


@dataclass(frozen=True)
class Asked:
    """A prefill node has the prompt; nothing is held here."""


@dataclass
class Wanted:
    """The prefill node is about to start: an allocation is to be granted. refused_at: the cache's
    room when there was none for it last."""

    refused_at: int | None = None


@dataclass(frozen=True)
class Bare:
    """The prefill node computes the prompt for its first token alone: nothing was granted."""


@dataclass(frozen=True)
class Granted:
    """The request's allocation is the sender's to write."""


@dataclass(frozen=True)
class Ready:
    """The first token is out; windows may land. step: computes the second token meanwhile, if it
    was begun."""

    step: EarlyStep | None = None


@dataclass(frozen=True)
class Done:
    """Every window landed and matched, but the room's step still runs."""

    message: RemoteDone
    step: EarlyStep


@dataclass(frozen=True)
class Quarantined:
    """Lost: the sender may still write the ids. quarantine: their name in the cache."""

    quarantine: int
    step: EarlyStep | None


@dataclass(frozen=True)
class Fenced:
    """The sender writes no more; the step may for a layer more."""

    quarantine: int
    step: EarlyStep


@dataclass(frozen=True)
class Over:
    """Holds nothing; the engine has forgotten the room."""


RoomState = Asked | Wanted | Bare | Granted | Ready | Done | Quarantined | Fenced | Over

MOVES: dict[type, tuple[type, ...]] = {
    Asked: (Wanted, Bare, Over),
    Wanted: (Asked, Granted, Over),
    Bare: (Over,),
    Granted: (Ready, Quarantined),
    Ready: (Done, Quarantined, Over),
    Done: (Quarantined, Over),
    Quarantined: (Fenced, Over),
    Fenced: (Over,),
    Over: (),
}


@dataclass
class DecodeRoom:
    id: RoomId
    request: Request
    held: HitBreakdown
    """Of the request's prompt, in this node's cache when it was asked for."""
    state: RoomState = field(default_factory=Asked)

    def move(self, state: RoomState) -> None:
        if type(state) not in MOVES[type(self.state)]:
            raise IllegalMove(
                f"room {self.id}: {type(self.state).__name__} -> {type(state).__name__}"
            )
        self.state = state

    @property
    def live(self) -> bool:
        """Whether its request still waits for it."""
        return not isinstance(self.state, Quarantined | Fenced | Over)

    @property
    def step(self) -> EarlyStep | None:
        """The early step that was begun in it."""
        match self.state:
            case Ready(step) | Done(step=step) | Quarantined(step=step) | Fenced(step=step):
                return step
        return None

    @property
    def running_step(self) -> EarlyStep | None:
        """An early step that may still write ids of the room."""
        step = self.step
        return None if step is None or step.ended else step
