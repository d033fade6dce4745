"""A request and its life. States are types; an illegal move raises and names both ends.

Waiting -> Prefilling -> Decoding -> Finished is the straight line. On a decode node a long prompt
goes Waiting -> AwaitingPrefill -> Receiving -> Decoding; on a prefill node Waiting -> AwaitingGrant
-> Prefilling -> HandingOver -> Finished, with a Pulling and back to Waiting before it where the
receiver had more than this node. A Loading comes before Prefilling, or AwaitingGrant, where memory
below the arena has more; what does not come goes back to Waiting. Retracted gives everything back
and waits again.
"""

import math
import time
from array import array
from collections.abc import Hashable
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar, Protocol

import numpy as np

from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind
from tasuki.pycache.layout import PAGE_TOKENS

from . import messages as m
from .progress import Progress
from .speculation.drafting import Drafting


@dataclass(frozen=True)
class PlannedCheckpoint:
    """The state after `position` tokens is to be kept."""

    position: int
    kind: CheckpointKind


class Lookup(Protocol):
    """Of what a remote store has of a prompt."""

    is_over: bool


class IllegalMove(Exception):
    """A request was asked to change to a state that its state does not allow."""


class State:
    """Of a request. phase: its public name and how it is counted."""

    phase: ClassVar[m.RequestPhase]

    def __init_subclass__(cls, phase: m.RequestPhase | None = None) -> None:
        if phase is not None:
            cls.phase = phase


class Waiting(State, phase=m.RequestPhase.WAITING):
    """Holds nothing."""


@dataclass(frozen=True)
class AwaitingPrefill(State, phase=m.RequestPhase.AWAITING_PREFILL):
    """(decode) A prefill node has the prompt; holds nothing here."""

    room: m.RoomId


class Pulling(State, phase=m.RequestPhase.PULLING):
    """(prefill) What the receiver offered is on its way here; the request itself holds nothing."""


@dataclass(frozen=True)
class Receiving(State, phase=m.RequestPhase.RECEIVING):
    """(decode) The allocation's own pages and slots are granted to the sender."""

    room: m.RoomId
    allocation: Allocation


@dataclass(frozen=True)
class Loading(State, phase=m.RequestPhase.LOADING):
    """What the tiers below the arena have of the prompt is on its way into the allocation. before:
    tokens that were usable without it. brought: by tier, the nearest first, tokens whose KV it
    brings; the last one brings the state."""

    allocation: Allocation
    boundary: int
    before: int
    brought: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Ahead:
    """What was computed of a request behind its load. tokens: of it, from the first on, that need
    no forward; the state behind them is in the allocation's last working slot. sampled: what was
    drawn behind them, if anything."""

    tokens: int
    sampled: Sampled | None


@dataclass(frozen=True)
class AwaitingGrant(State, phase=m.RequestPhase.AWAITING_GRANT):
    """(prefill) The allocation is held; the receiver's ids are not known yet."""

    allocation: Allocation


@dataclass
class Active(State):
    """Runs in forwards."""

    allocation: Allocation
    progress: Progress

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """The allocation's working slots."""
        return tuple(self.allocation.working_slots)

    @property
    def state_slot(self) -> int:
        """Holds the state after the computed tokens."""
        return self.slots[self.progress.slot]

    @property
    def next_index(self) -> int:
        """Which working slot the next forward writes: the other where there are two."""
        return (self.progress.scheduled_slot + 1) % len(self.slots)

    @property
    def answers_here(self) -> bool:
        """Whether this engine decodes the answer after the prompt."""
        return True


@dataclass
class Prefilling(Active, phase=m.RequestPhase.PREFILLING):
    """More than one token is still to be forwarded before the next one is sampled."""

    checkpoints: list[PlannedCheckpoint] = field(default_factory=list)
    grant: m.Grant | None = None
    pages_sent: int = 0

    @property
    def answers_here(self) -> bool:
        return self.grant is None


@dataclass
class Decoding(Active, phase=m.RequestPhase.DECODING):
    """One token a step."""


@dataclass(frozen=True)
class HandingOver(State, phase=m.RequestPhase.HANDING_OVER):
    """(prefill) The first token is out; windows may still be read from the allocation's pages and
    slot."""

    allocation: Allocation


class Retracted(State, phase=m.RequestPhase.RETRACTED):
    """Gave its allocation back for others to progress; goes to the head of the queue."""


class Finished(State, phase=m.RequestPhase.FINISHED):
    """Holds nothing."""


class Aborted(State, phase=m.RequestPhase.ABORTED):
    """Holds nothing."""


MOVES: dict[type, tuple[type, ...]] = {
    Waiting: (AwaitingPrefill, AwaitingGrant, Pulling, Loading, Prefilling, Aborted, Finished),
    AwaitingPrefill: (Receiving, Waiting, Finished, Aborted),
    Pulling: (Waiting, Aborted),
    Receiving: (Decoding, Waiting, Finished, Aborted),
    Loading: (AwaitingGrant, Prefilling, Waiting, Aborted),
    AwaitingGrant: (Prefilling, Aborted),
    Prefilling: (Decoding, HandingOver, Retracted, Finished, Aborted),
    Decoding: (Retracted, Finished, Aborted),
    HandingOver: (Finished,),
    Retracted: (Waiting,),
    Finished: (),
    Aborted: (),
}


@dataclass(frozen=True)
class PromptScoring:
    """top: how many of the likeliest tokens beside each. tokens: the prompt."""

    top: int
    tokens: m.Tokens

    def count(self, start: int, stop: int) -> int:
        """How many of the rows [start, stop) of a forward have a token of the prompt behind
        them."""
        return max(0, min(stop, len(self.tokens) - 1) - start)


@dataclass(eq=False)
class Request:
    """What the engine knows of one request. `tokens` is the prompt and every sampled token.

    caller: with whom its caller shares the engine's room. priority: the lowest of a caller first.
    due: when it must have been begun, on the queue's clock; first_due: when its first token is due,
    infinite where nobody said when, or it waited past that. overtaken: how often others
    of its line went past it. branch_points: where others branch off before its prompt is begun.
    message_end, changed, purpose: as of the Submit. scoring: how its prompt is to be scored;
    scored: tokens from the second on that were. findable: others may resume at what it leaves in
    the cache. forks: answers that wait for its prompt to be computed, which is theirs but for the
    last token; it has none of its own, and its client knows only theirs. carrier: whose fork it
    was, by its id, since two that hold each other stay long after their end. drafting: None where
    nothing of its answer is drafted."""

    id: m.RequestId
    prompt: m.Tokens
    sampling: SamplingParams
    salt: bytes = b""
    cursor: int | None = None
    marks: tuple[int, ...] = ()
    message_end: int | None = None
    ticket: m.Ticket | None = None
    gateway_room: m.GatewayRoom | None = None
    caller: str = ""
    priority: int = 0
    patience: float = math.inf  # seconds that its client waits for an answer to begin
    targets: m.Targets = m.NO_TARGETS
    changed: tuple[int, int] | None = None
    scoring: PromptScoring | None = None
    scored: int = 0
    findable: bool = True
    forks: tuple["Request", ...] = ()
    carrier: m.RequestId | None = None
    purpose: m.Purpose = m.Purpose.ANSWER
    drafting: Drafting | None = None
    # An array, since a list keeps 36 bytes a token for as long as the answer goes on.
    output: "array[int]" = field(default_factory=lambda: array("i"))
    state: State = field(default_factory=Waiting)
    hit: m.HitBreakdown | None = None
    transfer: m.TransferReport | None = None
    pulled: m.PullReport | None = None
    pull_tried: bool = False
    fetch_tried: bool = False
    load_failed: int | None = None  # tokens that a load was to make usable, and did not
    ahead: Ahead | None = None  # until it is to be computed on
    lookup: Lookup | None = None  # of what a remote store has of it, once that was begun
    route: m.RouteReport | None = None
    prefill_choice: m.PrefillChoice | None = None
    asked_at: float | None = None  # of a prefill node
    started: tuple[float, int] | None = (
        None  # when it was allocated to be computed, from which token
    )
    prefilled_on: str = "local"
    handover_lost: bool = False
    refused_at: Hashable = None  # what the last refusal depended on
    suspect: bool = False  # a forward with it and others failed: the next one is its own
    created: float = field(default_factory=time.monotonic)
    queued_at: float = 0.0  # when it entered this engine's queue, on the queue's clock
    deadline: float | None = None  # of its client, on the queue's clock
    due: float = math.inf
    first_due: float = math.inf
    overtaken: int = 0
    branch_points: list[PlannedCheckpoint] = field(default_factory=list)
    first_token_at: float | None = None
    life: list[m.LifeMark] = field(default_factory=list)

    def move(self, state: State) -> None:
        if type(state) not in MOVES[type(self.state)]:
            raise IllegalMove(f"request {self.id}: {self.state.phase} -> {state.phase}")
        if isinstance(self.state, Active) and not isinstance(state, Active):
            self.state.progress.end()
        self.state = state
        m.marked(self.life, m.LifeMark(state.phase, time.monotonic() - self.created))

    @property
    def begun(self) -> bool:
        """Whether a forward of it was ever to run here, or its first token is out."""
        return self.started is not None or bool(self.output)

    @property
    def ordered_by(self) -> float:
        """The next time by which something is due, while it waits."""
        return min(self.due, self.first_due)

    @property
    def tokens_left(self) -> int:
        """Of its answer, at most."""
        return max(0, self.sampling.max_new_tokens - len(self.output))

    @property
    def told_as(self) -> m.RequestId:
        """The id that its client knows it by."""
        return self.forks[0].id if self.forks else self.id

    @property
    def waiting_forks(self) -> list["Request"]:
        """Those that were not aborted meanwhile."""
        return [fork for fork in self.forks if isinstance(fork.state, Waiting)]

    def __post_init__(self) -> None:
        self._prompt_length = len(self.prompt)

    @property
    def length(self) -> int:
        return self._prompt_length + len(self.output)

    @property
    def expected_length(self) -> int:
        """Tokens there are, those that are being drawn included."""
        state = self.state
        drawn = state.progress.sampling_in_flight if isinstance(state, Active) else 0
        return self.length + drawn

    @property
    def final_length(self) -> int:
        """Most tokens that are ever forwarded: the last sampled one is not."""
        return self._prompt_length + max(self.sampling.max_new_tokens, 1) - 1

    @property
    def next_capacity(self) -> int:
        """Tokens to allocation pages for now: all there are, a page ahead, never past the end."""
        length = self.expected_length
        return max(length, min(length + PAGE_TOKENS, self.final_length))

    def tokens(self) -> m.Tokens:
        if not self.output:
            return self.prompt
        return np.concatenate([self.prompt, np.asarray(self.output, dtype=np.int32)])

    def token_slice(self, start: int, stop: int) -> list[int]:
        """Tokens [start, stop) of prompt and output, O(stop - start)."""
        prompt = self._prompt_length
        if start >= prompt:
            return self.output[start - prompt : stop - prompt].tolist()
        head: list[int] = self.prompt[start:stop].tolist()
        return head + self.output[max(0, start - prompt) : max(0, stop - prompt)].tolist()
