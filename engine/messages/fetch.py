"""A fetch: a decode node copies a state from the prefill node holding it. Other prefill nodes may
pull it from there. Nothing is computed for it and no token is sampled."""

from enum import Enum

from tasuki.pycache.keys import Keys

from .types import Message, OfTransfer, TransferId


class FetchOutcome(Enum):
    """fetched: the state is in this node's cache. refused: the prefill node does not hold it, or
    sends as many as allowed already. no_room: there was no memory for it here. late: it took longer
    than it was worth. lost: the transfer failed."""

    FETCHED = "fetched"
    REFUSED = "refused"
    NO_ROOM = "no_room"
    LATE = "late"
    LOST = "lost"


class FetchRequest(Message):
    """Like Ticket, for a fetched state."""

    transfer_id: TransferId
    generation: int
    salt: bytes


class FetchReserve(Message):
    """(prefill) Send the state after exactly this prompt, and its KV. Answered by PrefillAccepted
    or FetchRefused; PrefillStart is answered by StateHeld. peer: as in PrefillReserve."""

    transfer_request: FetchRequest
    prompt: Keys
    peer: str = ""


class FetchRefusal(Enum):
    NOT_HELD = "not_held"
    BUSY = "busy"


class FetchRefused(Message):
    transfer_id: TransferId
    refusal: FetchRefusal


class StateHeld(OfTransfer):
    """The transfer's state may be sent at once: the sender has its plan."""


class FetchAdvised(Message):
    """(decode) No prefill node was asked for this transfer yet: fetch the state first. `holder`, a
    prefill node, has the state after its first `tokens`. The prefill node computing the prompt
    lacks it and gets it sooner through this node. seconds: the fetch's time limit."""

    transfer_id: TransferId
    holder: str
    tokens: int
    seconds: float


class FetchWanted(Message):
    """(decode) Open a transfer at `holder` for the state after the prompt, for at most `seconds`.
    Answered by GrantWanted and RemoteDone, or by FetchLost. WriterFenced follows FetchLost if
    anything was granted."""

    transfer_request: FetchRequest
    prompt: Keys
    holder: str
    seconds: float


class FetchLost(Message):
    """(decode) The fetch was lost. Granted ids are quarantined until WriterFenced."""

    transfer_id: TransferId
    outcome: FetchOutcome


class StateFetched(Message):
    """The outcome of a fetch of `tokens` tokens. bytes: received."""

    outcome: FetchOutcome
    tokens: int
    bytes: int = 0
    holder: str = ""
