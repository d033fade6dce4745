"""Messages of a pull: a prefill node copies pages and a state from a decode node before it computes
a prompt."""

from tasuki.transfer.chunks.chunk import Destination

from .reports import PullReport
from .types import Message, OfTransfer, TransferId


class PullGrant(Message):
    """The prefill node's own page and slot ids for the tokens offered in a transfer request.
    pages[i] is the page for logical page first_page + i, up to the last page of `tokens`.
    generation: a number counted by the prefill engine."""

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
    """The decode node's own ids of the pages and the state to be pulled. Entries of `pages` have
    the order of PullGrant's."""

    transfer_id: TransferId
    pages: tuple[int, ...]
    slot: int


class PullCommitted(Message):
    """(prefill) Every layer chunk of the pull arrived and every digest matched."""

    transfer_id: TransferId
    report: PullReport


class PullLost(OfTransfer):
    """(prefill) The pull was lost, so the prompt is computed without it. Its granted page and slot
    ids are quarantined until PullFenced."""


class PullFenced(OfTransfer):
    """(prefill) The pull's writer can write no more, so its quarantined ids are free."""


class PullAsked(Message):
    """(decode) Pin the tokens offered in the transfer request, because the prefill node pulls them.
    Answered by PullPinned or PullRefused."""

    transfer_id: TransferId
    tokens: int
    first_page: int


class PullEnd(OfTransfer):
    """(decode) Release the pulled state: the pull is over and its sender has drained."""


class PullWanted(Message):
    """(prefill) Ask the decode node for the transfer request's offered tokens, to be written to
    these page and slot ids. Answered by PullCommitted, or by PullLost and then PullFenced."""

    grant: PullGrant


class PullPinned(Message):
    """(decode) The state is pinned and no forward writes to it: it may be sent."""

    source: PullSource


class PullRefused(Message):
    """(decode) The state cannot be sent, for the given reason."""

    transfer_id: TransferId
    reason: str
