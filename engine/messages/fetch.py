"""A fetch: a state that a prefill node holds, brought to a decode node, which may then be pulled
from there. Nothing is computed for it and no token is drawn."""

from enum import Enum

from .types import Message, OfRoom, RoomId, Tokens


class FetchOutcome(Enum):
    """fetched: it is in this node's cache. refused: the prefill node does not hold it, or sends as
    many as it may. no_room: there was no room for it here. late: it took longer than it was worth.
    lost: the room broke."""

    FETCHED = "fetched"
    REFUSED = "refused"
    NO_ROOM = "no_room"
    LATE = "late"
    LOST = "lost"


class FetchTicket(Message):
    """As Ticket, of what is fetched."""

    room: RoomId
    generation: int
    salt: bytes


class FetchReserve(Message):
    """(prefill) Send the state behind exactly this prompt, and its KV; answered by PrefillAccepted
    or FetchRefused, and PrefillStart by StateHeld. peer: as of PrefillReserve."""

    ticket: FetchTicket
    prompt: Tokens
    peer: str = ""


class FetchRefusal(Enum):
    NOT_HELD = "not_held"
    BUSY = "busy"


class FetchRefused(Message):
    room: RoomId
    refusal: FetchRefusal


class StateHeld(OfRoom):
    """What the room fetches may leave at once: the sender has its plan."""


class FetchAdvised(Message):
    """(decode) No room was opened for the prompt of this one: a prefill node, `holder`, has the
    state behind its first `tokens`, the one that would compute it has not, and it is there sooner
    by way of this node. seconds: within which."""

    room: RoomId
    holder: str
    tokens: int
    seconds: float


class FetchWanted(Message):
    """(decode) Open a room at `holder` for the state behind the prompt, for so many seconds at
    most; answered by GrantWanted and RemoteDone, or by FetchLost, behind which WriterFenced comes
    if anything was granted."""

    ticket: FetchTicket
    prompt: Tokens
    holder: str
    seconds: float


class FetchLost(Message):
    """(decode) Granted ids are quarantined until WriterFenced."""

    room: RoomId
    outcome: FetchOutcome


class StateFetched(Message):
    """What became of a fetch of so many tokens. bytes: that came."""

    outcome: FetchOutcome
    tokens: int
    bytes: int = 0
    holder: str = ""
