"""Messages of a fetch: a decode node copies a state from the prefill node holding it. Other prefill
nodes may then pull it from the decode node. A fetch computes no prompt and samples no token."""

from enum import Enum

from tasuki.pycache.keys import Keys

from .types import Message, OfTransfer, TransferId


class FetchOutcome(Enum):
    """The outcome of a fetch of a state. fetched: the state is in this node's cache. refused: the
    prefill node does not hold it, or already sends as many states as allowed. no_room: this node
    had no memory for it. late: the fetch took longer than it was worth. lost: the transfer
    failed."""

    FETCHED = "fetched"
    REFUSED = "refused"
    NO_ROOM = "no_room"
    LATE = "late"
    LOST = "lost"


class FetchRequest(Message):
    """The receiver's request for a fetched state, like TransferRequest for a prompt."""

    transfer_id: TransferId
    generation: int
    salt: bytes


class FetchReserve(Message):
    """(prefill) Send the state after all tokens of this prompt, and the prompt's KV. Answered by
    PrefillAccepted or FetchRefused. A later PrefillStart is answered by StateHeld. peer: the asking
    decode node, named as in PrefillReserve."""

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
    """The state of this fetch may be sent immediately: its sender has the list of layers."""


class FetchAdvised(Message):
    """(decode) Fetch the state after the prompt's first `tokens` tokens from `holder`, a prefill
    node, before the prompt's hand-over. No prefill node was asked for this transfer yet. The
    prefill node chosen for the prompt lacks the state and gets it sooner through this node.
    seconds: the fetch's time limit."""

    transfer_id: TransferId
    holder: str
    tokens: int
    seconds: float


class FetchWanted(Message):
    """(decode) Open a transfer at `holder` to fetch the state after the whole prompt, for at most
    `seconds`. Answered by GrantWanted and RemoteDone, or by FetchLost. WriterFenced follows
    FetchLost if page or slot ids were granted."""

    transfer_request: FetchRequest
    prompt: Keys
    holder: str
    seconds: float


class FetchLost(Message):
    """(decode) The fetch was lost. Its granted page and slot ids are quarantined until
    WriterFenced."""

    transfer_id: TransferId
    outcome: FetchOutcome


class StateFetched(Message):
    """The outcome of a fetch of a state of `tokens` tokens. bytes: bytes received. holder: the
    prefill node asked."""

    outcome: FetchOutcome
    tokens: int
    bytes: int = 0
    holder: str = ""
