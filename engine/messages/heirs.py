"""What a node that ends leaves to prefill nodes, its heirs: a decode node offers it to them, a
prefill node gives it to decode nodes, which pass it on."""

from collections.abc import Mapping, Set
from dataclasses import field
from enum import Enum

from tasuki.transfer.peer_values import ByteCount, Name

from .types import Message, OfRoom, Tokens


class HeirOutcome(Enum):
    """Of a state that was to be left. taken: an heir has pulled it, whole. held: a prefill node had
    it before, or the decode node that goes on there has more. declined: an heir would rather
    compute it, or has no room. lost: no heir that was asked could take it. too_much: more bytes
    than are left in all. cut: the time was over."""

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


class LeavingBegun(Message):
    """(prefill) There are states to leave: decode nodes may ask for them."""


class LeftWanted(Message):
    """(prefill) A decode node would take a state over; answered by LeftState. peer: as of
    PrefillReserve. asking: all that ask, by the same names."""

    query_id: int
    peer: str
    asking: Set[str]


class GivenState(Message):
    """The state behind the prompt, for one decode node. number: by which LeftTakenOver names it.
    known: that node was handed over the prompt that the state is of, the only one that this engine
    knows of."""

    number: int
    prompt: Tokens
    salt: bytes
    known: bool


class LeftState(Message):
    """The answer to LeftWanted. state: None where there is none for that decode node now. over:
    nor will there be one for any."""

    query_id: int
    state: GivenState | None
    over: bool


class LeftTakenOver(Message):
    """(prefill) What became of a state that a decode node was given. bytes, heir: as of
    StateLeft."""

    number: int
    outcome: HeirOutcome
    bytes: ByteCount = 0
    heir: Name = ""


class PassOn(Message):
    """(decode) `holder`, a prefill node, ends and leaves this state: fetch it within so many
    seconds and offer it to one that stays. query_id: by which StatePassedOn names it."""

    query_id: int
    state: GivenState
    holder: str
    seconds: float


class StatePassedOn(Message):
    """What became of PassOn's state. bytes, heir: as of StateLeft."""

    query_id: int
    outcome: HeirOutcome
    bytes: int = 0
    heir: str = ""


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
