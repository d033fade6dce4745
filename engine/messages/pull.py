"""A pull: a prefill node copies pages from a decode node before it computes."""

from tasuki.transfer.chunks.chunk import Destination

from .reports import PullReport
from .types import Message, OfTransfer, TransferId


class PullGrant(Message):
    """The prefill node's page and slot ids for the transfer request's offered tokens. pages[i] is
    logical page first_page + i, up to the last page of `tokens`. generation: the prefill engine's
    own count."""

    transfer_id: TransferId
    generation: int
    tokens: int
    first_page: int
    pages: tuple[int, ...]
    slot: int

    @property
    def destination(self) -> Destination:
        return Destination(self.first_page, self.pages, self.slot)


class PullSource(Message):
    """The decode node's ids of the pulled pages and state, numbered like PullGrant."""

    transfer_id: TransferId
    pages: tuple[int, ...]
    slot: int


class PullCommitted(Message):
    """(prefill) Every layer chunk of the pull arrived and every digest matched."""

    transfer_id: TransferId
    report: PullReport


class PullLost(OfTransfer):
    """(prefill) The pull was lost: the prompt is computed without it. Granted ids are quarantined
    until PullFenced."""


class PullFenced(OfTransfer):
    """(prefill) The pull's writer can write no more: quarantined ids are free."""


class PullAsked(Message):
    """(decode) The prefill node pulls the tokens offered in the transfer request: pin them.
    Answered by PullPinned or PullRefused."""

    transfer_id: TransferId
    tokens: int
    first_page: int


class PullEnd(OfTransfer):
    """(decode) Release the state: the pull is over and its sender has drained."""


class PullWanted(Message):
    """(prefill) Ask the decode node for the transfer request's offered tokens, into these ids.
    Answered by PullCommitted, or PullLost and then PullFenced."""

    grant: PullGrant


class PullPinned(Message):
    """(decode) The state is pinned and at rest: it may be sent."""

    source: PullSource


class PullRefused(Message):
    """(decode) The state cannot be sent, for the given reason."""

    transfer_id: TransferId
    reason: str
