"""A request and its states. States are types; an illegal move raises and names both states.

The straight line is Waiting -> Prefilling -> Decoding -> Finished. On a decode node a long prompt
goes Waiting -> AwaitingPrefill -> Receiving -> Decoding. On a prefill node it goes Waiting ->
AwaitingGrant -> Prefilling -> HandingOver -> Finished. If the receiver has more of the prompt than
this node, Pulling and Waiting come first, likewise AwaitingMedia for its pictures. If memory below
the arena has more, Loading comes before Prefilling or AwaitingGrant; a failed load goes back to
Waiting. A retracted request returns all its memory and waits again.
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
from tasuki.pycache.keys import Keys, PromptTokens
from tasuki.pycache.layout import PAGE_TOKENS

from . import messages as m
from .pictures.placed import PlacedPictures
from .pictures.seen_picture import SeenPictures
from .progress import Progress
from .speculation.drafting import Drafting


@dataclass(frozen=True)
class PlannedCheckpoint:
    """A request to keep the state after `position` tokens."""

    position: int
    kind: CheckpointKind


class Lookup(Protocol):
    """A lookup of a prompt in a remote store."""

    is_over: bool


class IllegalMove(Exception):
    """A change of a request's state not allowed in its present state."""


class State:
    """The state of a request. phase: its public name, used by counters."""

    phase: ClassVar[m.RequestPhase]

    def __init_subclass__(cls, phase: m.RequestPhase | None = None) -> None:
        if phase is not None:
            cls.phase = phase


class Waiting(State, phase=m.RequestPhase.WAITING):
    """The request holds no memory, and waits to begin."""


@dataclass(frozen=True)
class AwaitingPrefill(State, phase=m.RequestPhase.AWAITING_PREFILL):
    """(decode) A prefill node has the prompt; the request holds no memory of this node."""

    transfer_id: m.TransferId


class Pulling(State, phase=m.RequestPhase.PULLING):
    """(prefill) The tokens offered by the receiver are being pulled; it holds no memory itself."""


class AwaitingMedia(State, phase=m.RequestPhase.AWAITING_MEDIA):
    """(prefill) Files of the prompt's pictures are on their way from the receiver. The request
    holds no memory in the arena."""


@dataclass(frozen=True)
class Receiving(State, phase=m.RequestPhase.RECEIVING):
    """(decode) The allocation's own pages and slots are the sender's destination."""

    transfer_id: m.TransferId
    allocation: Allocation


@dataclass(frozen=True)
class Loading(State, phase=m.RequestPhase.LOADING):
    """Tokens from the tiers below the arena are being loaded into the allocation. boundary: number
    of first tokens usable after the load. before: number usable without the load. brought: loaded
    tokens by tier, the state's tier last."""

    allocation: Allocation
    boundary: int
    before: int
    brought: tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Ahead:
    """The part of a request computed behind its load (before the load had ended). tokens: number of
    its first tokens without need of a forward. The state after them is in the allocation's last
    working slot. sampled: the token sampled after them, if any."""

    tokens: int
    sampled: Sampled | None


@dataclass(frozen=True)
class AwaitingGrant(State, phase=m.RequestPhase.AWAITING_GRANT):
    """(prefill) The allocation is held; the receiver's destination ids are not known yet."""

    allocation: Allocation


@dataclass
class Active(State):
    """The request runs in forwards."""

    allocation: Allocation
    progress: Progress

    @cached_property
    def slots(self) -> tuple[int, ...]:
        """Return the allocation's working slots."""
        return tuple(self.allocation.working_slots)

    @property
    def state_slot(self) -> int:
        """Return the slot with the state after the computed tokens."""
        return self.slots[self.progress.slot]

    @property
    def next_index(self) -> int:
        """Return the index of the working slot written next: the other one of two."""
        return (self.progress.scheduled_slot + 1) % len(self.slots)

    @property
    def answers_here(self) -> bool:
        """Return whether this engine decodes the answer after the prompt."""
        return True


@dataclass
class Prefilling(Active, phase=m.RequestPhase.PREFILLING):
    """More than one token must be forwarded before the next one is sampled. grant: (prefill) the
    receiver's destination. pages_sent: number of its first pages needing no further sending."""

    checkpoints: list[PlannedCheckpoint] = field(default_factory=list)
    grant: m.Grant | None = None
    pages_sent: int = 0

    @property
    def answers_here(self) -> bool:
        return self.grant is None


@dataclass
class Encoding(Prefilling, phase=m.RequestPhase.ENCODING):
    """As Prefilling. The rows of the next chunk's picture are not there yet."""


@dataclass
class Decoding(Active, phase=m.RequestPhase.DECODING):
    """Each step computes and samples one token of the answer."""


@dataclass(frozen=True)
class HandingOver(State, phase=m.RequestPhase.HANDING_OVER):
    """(prefill) The first token was emitted. Layer chunks may still be read from the allocation."""

    allocation: Allocation


class Retracted(State, phase=m.RequestPhase.RETRACTED):
    """The allocation was returned for the progress of other requests. The request goes to the head
    of the queue."""


class Finished(State, phase=m.RequestPhase.FINISHED):
    """The request has ended with an answer, and holds no memory."""


class Aborted(State, phase=m.RequestPhase.ABORTED):
    """The request was aborted or rejected, and holds no memory."""


MOVES: dict[type, tuple[type, ...]] = {
    Waiting: (
        *(AwaitingPrefill, AwaitingGrant, Pulling, AwaitingMedia, Loading, Prefilling),
        *(Aborted, Finished),
    ),
    AwaitingPrefill: (Receiving, Waiting, Finished, Aborted),
    Pulling: (Waiting, Aborted),
    AwaitingMedia: (Waiting, Aborted),
    Receiving: (Decoding, Waiting, Finished, Aborted),
    Loading: (AwaitingGrant, Prefilling, Waiting, Aborted),
    AwaitingGrant: (Prefilling, Aborted),
    Prefilling: (Encoding, Decoding, HandingOver, Retracted, Finished, Aborted),
    Encoding: (Prefilling, Retracted, Aborted),
    Decoding: (Retracted, Finished, Aborted),
    HandingOver: (Finished,),
    Retracted: (Waiting,),
    Finished: (),
    Aborted: (),
}


@dataclass(frozen=True)
class PromptScoring:
    """The scoring of a prompt. top: number of likeliest alternatives reported for each token.
    tokens: the prompt."""

    top: int
    tokens: PromptTokens

    def count(self, start: int, stop: int) -> int:
        """Return the number of tokens in [start, stop) with a prompt token after it to score."""
        return max(0, min(stop, len(self.tokens) - 1) - start)


@dataclass(eq=False)
class Request:
    """The engine's record of one request. `tokens` are the prompt's and every sampled token. `keys`
    are the prompt's, equal to its tokens outside of pictures.

    caller: its caller's id, for sharing the engine among callers. priority: within a caller the
    lowest goes first. due: latest time to begin, on the queue's clock. first_due: due time of its
    first token; infinite without a target, or once it is missed. overtaken: number of times other
    requests of its line went ahead. branch_points: known points, before its prompt begins, for
    other prompts to branch off. message_end, changed, purpose: from the Submit. scoring: the
    requested scoring of its prompt. scored: scored tokens, from the second on. findable: other
    requests may resume from its cached states. forks: answers waiting for the computation of its
    prompt. They share the prompt but for the last token. The request has no answer of its own, and
    its client knows only the forks. carrier: for a fork, the id of the request that computed its
    prompt. An id is used because objects referring to each other stay in memory long after their
    end. drafting: None if its answer is not drafted. pictures: of its prompt; None: it has none.
    mixed: its KV and states are of several weights, and no other request may find them.
    """

    id: m.RequestId
    prompt: PromptTokens
    sampling: SamplingParams
    salt: bytes = b""
    cursor: int | None = None
    marks: tuple[int, ...] = ()
    message_end: int | None = None
    transfer_request: m.TransferRequest | None = None
    gateway_transfer: m.GatewayTransfer | None = None
    caller: str = ""
    priority: int = 0
    patience: float = math.inf  # longest wait for the answer's begin, in seconds
    targets: m.Targets = m.NO_TARGETS
    changed: tuple[int, int] | None = None
    scoring: PromptScoring | None = None
    scored: int = 0
    findable: bool = True
    forks: tuple["Request", ...] = ()
    carrier: m.RequestId | None = None
    purpose: m.Purpose = m.Purpose.ANSWER
    drafting: Drafting | None = None
    pictures: PlacedPictures | None = None
    # An array, because a list keeps 36 bytes per token during the whole answer.
    output: "array[int]" = field(default_factory=lambda: array("i"))
    state: State = field(default_factory=Waiting)
    hit: m.HitBreakdown | None = None
    transfer: m.TransferReport | None = None
    pulled: m.PullReport | None = None
    pull_tried: bool = False
    fetch_tried: bool = False
    seen: SeenPictures = field(default_factory=dict)  # of its pictures, by index
    load_failed: int | None = None  # tokens expected from a load that failed
    ahead: Ahead | None = None  # None once its computation goes on
    lookup: Lookup | None = None  # lookup in a remote store, once begun
    route: m.RouteReport | None = None
    prefill_choice: m.PrefillChoice | None = None
    asked_at: float | None = None  # time of the request to a prefill node
    started: tuple[float, int] | None = None  # time of the allocation, first token to compute
    encodes: float = 0.0  # work of its pictures without rows since `started`, in tokens
    prefilled_on: str = "local"
    handover_lost: bool = False
    refused_at: Hashable = None  # state behind the last refusal
    suspect: bool = False  # a forward with it and others failed: its next one is alone
    mixed: bool = False
    weights: tuple[m.WeightsRun, ...] = ()  # versions of its output; empty before an update
    created: float = field(default_factory=time.monotonic)
    queued_at: float = 0.0  # time of entering this engine's queue, on the queue's clock
    deadline: float | None = None  # the client's, on the queue's clock
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

    def goes_on_with(self, before: str, version: str) -> None:
        """Record that other weights draw the next token. before: version of those so far."""
        first = len(self.output)
        runs = self.weights or (m.WeightsRun(0, before),)
        kept = tuple(run for run in runs if run.first < first)
        self.weights = (*kept, m.WeightsRun(first, version))

    @property
    def begun(self) -> bool:
        """Return True if a forward of the request was ever to run on this engine, or its first
        token was emitted."""
        return self.started is not None or bool(self.output)

    @property
    def ordered_by(self) -> float:
        """Return the request's next due time while it waits, to order the queue."""
        return min(self.due, self.first_due)

    @property
    def tokens_left(self) -> int:
        """Return the largest number of tokens the answer may still get."""
        return max(0, self.sampling.max_new_tokens - len(self.output))

    @property
    def told_as(self) -> m.RequestId:
        """Return the request id known to the client: the first fork's, if the request has forks,
        else its own."""
        return self.forks[0].id if self.forks else self.id

    @property
    def waiting_forks(self) -> list["Request"]:
        """Return the forks not aborted meanwhile."""
        return [fork for fork in self.forks if isinstance(fork.state, Waiting)]

    def __post_init__(self) -> None:
        self._prompt_length = len(self.prompt)
        self.keys = Keys(self.prompt)
        if self.pictures is not None:
            # The prompt of a carrier is a part of its answers' prompt.
            self.keys = Keys(self.pictures.keys[: self._prompt_length])

    @property
    def length(self) -> int:
        return self._prompt_length + len(self.output)

    @property
    def expected_length(self) -> int:
        """Return the number of the request's tokens, prompt and output, including tokens being
        sampled."""
        state = self.state
        sampled = state.progress.sampling_in_flight if isinstance(state, Active) else 0
        return self.length + sampled

    @property
    def final_length(self) -> int:
        """Return the largest number of tokens ever forwarded: the last one is not."""
        return self._prompt_length + max(self.sampling.max_new_tokens, 1) - 1

    @property
    def next_capacity(self) -> int:
        """Return the number of tokens to allocate pages for now: all tokens and a page ahead, but
        never past the end."""
        length = self.expected_length
        return max(length, min(length + PAGE_TOKENS, self.final_length))

    def tokens(self) -> PromptTokens:
        """Return the tokens of prompt and output."""
        return PromptTokens(self._with_output(self.prompt))

    def all_keys(self) -> Keys:
        """Return the keys of prompt and output. A sampled token is its own key."""
        return Keys(self._with_output(self.keys))

    def _with_output(self, prompt: m.Tokens) -> m.Tokens:
        if not self.output:
            return prompt
        return np.concatenate([prompt, np.asarray(self.output, dtype=np.int32)])

    def output_keys(self, start: int, stop: int) -> Keys:
        """Return keys [start, stop) of prompt and output. REQUIRES: none is of the prompt."""
        first = self._prompt_length
        assert start >= first
        return Keys(np.asarray(self.output[start - first : stop - first], dtype=np.int32))

    def token_slice(self, start: int, stop: int) -> list[int]:
        """Return tokens [start, stop) of prompt and output, in O(stop - start)."""
        prompt = self._prompt_length
        if start >= prompt:
            return self.output[start - prompt : stop - prompt].tolist()
        head: list[int] = self.prompt[start:stop].tolist()
        return head + self.output[max(0, start - prompt) : max(0, stop - prompt)].tolist()
