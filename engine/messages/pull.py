"""A pull: pages that a prefill node fetches from a decode node before it computes."""

from dataclasses import dataclass

from .reports import PullReport
from .types import OfRoom, RoomId


@dataclass(frozen=True)
class PullGrant:
    """The prefill node's page and slot ids for what the ticket offered. pages[i] is logical page
    first_page + i, up to the last page of `tokens`. generation: the prefill engine's own count."""

    room: RoomId
    generation: int
    tokens: int
    first_page: int
    pages: tuple[int, ...]
    slot: int


@dataclass(frozen=True)
class PullSource:
    """The decode node's ids that hold it, as PullGrant numbers them."""

    room: RoomId
    pages: tuple[int, ...]
    slot: int


@dataclass(frozen=True)
class PullCommitted:
    """(prefill) Every window of the pull landed and every digest matched."""

    room: RoomId
    report: PullReport


class PullLost(OfRoom):
    """(prefill) The prompt is computed without it; granted ids are quarantined until
    PullFenced."""


class PullFenced(OfRoom):
    """(prefill) The pull's writer can write no more: quarantined ids are free."""


@dataclass(frozen=True)
class PullAsked:
    """(decode) The prefill node pulls what the room's ticket offered: pin it; answered by
    PullPinned or PullRefused."""

    room: RoomId
    tokens: int
    first_page: int


class PullEnd(OfRoom):
    """(decode) The pull is over and its sender has drained: let go."""


@dataclass(frozen=True)
class PullWanted:
    """(prefill) Ask the decode node for what the ticket offered, into these ids; answered by
    PullCommitted, or PullLost and then PullFenced."""

    grant: PullGrant


@dataclass(frozen=True)
class PullPinned:
    """(decode) Pinned and at rest: may be sent."""

    source: PullSource


@dataclass(frozen=True)
class PullRefused:
    """(decode) It is here no more."""

    room: RoomId
    reason: str
