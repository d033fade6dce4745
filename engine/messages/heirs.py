"""What a decode node that ends leaves to prefill nodes, its heirs."""

from collections.abc import Mapping
from dataclasses import field
from enum import Enum

from .types import Message, OfRoom


class HeirOutcome(Enum):
    """Of a state that was to be left. taken: an heir has pulled it, whole. held: a prefill node had
    it before. declined: an heir would rather compute it, or has no room. lost: no heir that was
    asked could take it. too_much: more bytes than are left in all. cut: the time was over."""

    TAKEN = "taken"
    HELD = "held"
    DECLINED = "declined"
    LOST = "lost"
    TOO_MUCH = "too_much"
    CUT = "cut"


class LeaveToHeirs(Message):
    """This engine is about to end: have prefill nodes pull what they lack of its most valuable
    states, few at a time while anything is in flight. Answered by LeftToHeirs once nothing is in
    flight and nothing is left to hand on, or by EndLeaving."""

    query_id: int


class EndLeaving(Message):
    """The time for LeaveToHeirs is over; idempotent."""


class AlreadyHeld(OfRoom):
    """(decode) A prefill node holds what the room was to bring there: none was opened."""


class StateLeft(Message):
    """What became of a state of so many tokens. bytes: that an heir pulled. heir: its name; empty
    where none has it from here."""

    outcome: HeirOutcome
    tokens: int
    bytes: int = 0
    heir: str = ""


class LeftToHeirs(Message):
    """states: by outcome. tokens, bytes: of those that were taken. untried: more states of value
    that nobody was asked to take."""

    query_id: int
    states: Mapping[HeirOutcome, int] = field(default_factory=dict)
    tokens: int = 0
    bytes: int = 0
    untried: int = 0
