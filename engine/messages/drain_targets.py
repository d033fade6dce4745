"""Messages about states handed on by a node before it ends, to prefill nodes, its drain targets. An
ending decode node offers its states to the drain targets. An ending prefill node gives them to
decode nodes, and these pass them on to drain targets."""

from collections.abc import Mapping, Set
from dataclasses import field
from enum import Enum

from tasuki.transfer.peer_values import ByteCount, Name

from .types import Message, OfTransfer, Tokens


class DrainTargetOutcome(Enum):
    """The outcome of handing a state of an ending node to drain targets.

    taken: a drain target has pulled it completely. held: a prefill node already had it, or the
    decode node continuing the conversation has a longer state. declined: a drain target preferred
    to recompute it, or has no memory. lost: every asked drain target failed to take it. too_much:
    the state has more bytes than the remaining byte allowance. cut: the time limit was reached
    first.
    """

    TAKEN = "taken"
    HELD = "held"
    DECLINED = "declined"
    LOST = "lost"
    TOO_MUCH = "too_much"
    CUT = "cut"


class LeaveToDrainTargets(Message):
    """Hand the most valuable states to prefill nodes, because this engine is about to end. The
    prefill nodes pull the parts they lack. Only a few states are sent at a time while any request
    is in flight. Answered by LeftToDrainTargets, once no request is in flight and no state remains
    to hand on. EndLeaving causes this answer earlier."""

    query_id: int


class EndLeaving(Message):
    """End LeaveToDrainTargets, because its time limit is reached. Idempotent."""


class AlreadyHeld(OfTransfer):
    """(decode) No transfer was opened, because a prefill node already holds the offered state."""


class LeavingBegun(Message):
    """(prefill) This ending engine now has states for the asking decode nodes to take over."""


class LeftWanted(Message):
    """(prefill) A decode node asks for a state of this ending engine. Answered by LeftState. peer:
    the decode node, named as in PrefillReserve. asking: names of all decode nodes asking for
    states."""

    query_id: int
    peer: str
    asking: Set[str]


class GivenState(Message):
    """A state of an ending prefill node, given to one decode node: the state after all tokens of
    `prompt`.

    number: names the state in LeftTakenOver. known: the state's prompt was handed over to this
    decode node, and to no other as far as the engine knows.
    """

    number: int
    prompt: Tokens
    salt: bytes
    known: bool


class LeftState(Message):
    """The answer to LeftWanted. state: the state given; None if none is available for the decode
    node now. over: True if the engine gives no more states to any decode node."""

    query_id: int
    state: GivenState | None
    over: bool


class LeftTakenOver(Message):
    """(prefill) The outcome of a state given to a decode node by LeftState. bytes: bytes pulled by
    a drain target. heir: the drain target's name; empty without one."""

    number: int
    outcome: DrainTargetOutcome
    bytes: ByteCount = 0
    heir: Name = ""


class PassOn(Message):
    """(decode) Fetch a state from `holder`, an ending prefill node, within `seconds`, and offer it
    to a staying prefill node. query_id: names the state in StatePassedOn."""

    query_id: int
    state: GivenState
    holder: str
    seconds: float


class StatePassedOn(Message):
    """The outcome of a state named by PassOn. bytes: bytes pulled by a drain target. heir: the
    drain target's name; empty without one."""

    query_id: int
    outcome: DrainTargetOutcome
    bytes: int = 0
    heir: str = ""


class StateLeft(Message):
    """The outcome of a state of `tokens` tokens, offered by this ending node to drain targets.
    bytes: bytes pulled by a drain target. heir: the drain target's name; empty if no drain target
    got the state from this node."""

    outcome: DrainTargetOutcome
    tokens: int
    bytes: int = 0
    heir: str = ""


class LeftToDrainTargets(Message):
    """The answer to LeaveToDrainTargets. states: number of states by outcome. tokens, bytes: sums
    over the states taken by drain targets. untried: number of more valuable states not offered to
    any node."""

    query_id: int
    states: Mapping[DrainTargetOutcome, int] = field(default_factory=dict)
    tokens: int = 0
    bytes: int = 0
    untried: int = 0
