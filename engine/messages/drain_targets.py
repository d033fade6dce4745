"""The states left by an ending node to prefill nodes, its drain targets. A decode node offers them
to the drain targets; a prefill node gives them to decode nodes, and these pass them on."""

from collections.abc import Mapping, Set
from dataclasses import field
from enum import Enum

from tasuki.pycache.keys import Keys
from tasuki.transfer.peer_values import ByteCount, Name

from .types import Message, OfTransfer


class DrainTargetOutcome(Enum):
    """The outcome of a state to be left.

    taken: a drain target has pulled it completely. held: a prefill node had it before, or the
    decode node continuing there has more. declined: a drain target would rather compute it, or has
    no memory. lost: no asked drain target could take it. too_much: more bytes than remain in all.
    cut: the time was over.
    """

    TAKEN = "taken"
    HELD = "held"
    DECLINED = "declined"
    LOST = "lost"
    TOO_MUCH = "too_much"
    CUT = "cut"


class LeaveToDrainTargets(Message):
    """This engine is about to end: prefill nodes should pull the missing parts of its most valuable
    states. Only a few are sent at a time while any request is in flight. Answered by
    LeftToDrainTargets once no request is in flight and no state is left to hand on, or by
    EndLeaving."""

    query_id: int


class EndLeaving(Message):
    """End LeaveToDrainTargets: its time is over. Idempotent."""


class AlreadyHeld(OfTransfer):
    """(decode) No transfer was opened, because a prefill node already holds its state."""


class LeavingBegun(Message):
    """(prefill) States are available to asking decode nodes."""


class LeftWanted(Message):
    """(prefill) A decode node would take a state over; answered by LeftState. peer: as in
    PrefillReserve. asking: all asking decode nodes, by the same names."""

    query_id: int
    peer: str
    asking: Set[str]


class GivenState(Message):
    """The state after the prompt, for one decode node.

    number: names the state in LeftTakenOver. known: the state's prompt was handed over to this
    node, and to no other as far as the engine knows.
    """

    number: int
    prompt: Keys
    salt: bytes
    known: bool


class LeftState(Message):
    """The answer to LeftWanted. state: None if none is available for the decode node now. over: no
    decode node will get another one."""

    query_id: int
    state: GivenState | None
    over: bool


class LeftTakenOver(Message):
    """(prefill) The outcome of a state given to a decode node. bytes, heir: as in StateLeft."""

    number: int
    outcome: DrainTargetOutcome
    bytes: ByteCount = 0
    heir: Name = ""


class PassOn(Message):
    """(decode) `holder`, an ending prefill node, leaves this state. Fetch it within `seconds` and
    offer it to a staying prefill node. query_id: names the state in StatePassedOn."""

    query_id: int
    state: GivenState
    holder: str
    seconds: float


class StatePassedOn(Message):
    """The outcome of PassOn's state. bytes, heir: as in StateLeft."""

    query_id: int
    outcome: DrainTargetOutcome
    bytes: int = 0
    heir: str = ""


class StateLeft(Message):
    """The outcome of a state of `tokens` tokens. bytes: pulled by a drain target. heir: its name;
    empty if no drain target got the state from here."""

    outcome: DrainTargetOutcome
    tokens: int
    bytes: int = 0
    heir: str = ""


class LeftToDrainTargets(Message):
    """states: counts by outcome. tokens, bytes: of the taken states. untried: more valuable states,
    offered to no node."""

    query_id: int
    states: Mapping[DrainTargetOutcome, int] = field(default_factory=dict)
    tokens: int = 0
    bytes: int = 0
    untried: int = 0
