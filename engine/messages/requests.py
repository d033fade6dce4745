"""Messages about requests: phases, submission, answers and ends. Also the drain of a node."""

import binascii
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import field, replace
from enum import Enum, StrEnum
from functools import cached_property
from itertools import repeat
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tasuki.model.ops.sampling.params import SamplingParams, TopLogprobs
from tasuki.pycache.keys import (
    KeyedRun,
    Keys,
    PictureDigest,
    PictureSource,
    PromptTokens,
    prompt_keys,
)

from .media import Media
from .reports import Usage
from .types import (
    NO_TARGETS,
    FinishReason,
    Message,
    RequestError,
    RequestId,
    Targets,
    Tokens,
    TransferId,
)
from .updates import WeightsRun


class Stage(Enum):
    """Stage of a request's life, as counted by schedulers and gateways."""

    QUEUED = "queued"
    PREFILL = "prefill"
    """The prompt is being computed on this node, or received from another node."""
    DECODE = "decode"
    HANDOVER = "handover"
    """The prompt is computed; the receiver may still read it."""
    OVER = "over"


class RequestPhase(StrEnum):
    """A request's phase, in the form used by every consumer.

    One for each state class of engine/request.py. The value is the public name, shown in metrics'
    labels, Stats, Explain and the page.
    """

    WAITING = "Waiting", Stage.QUEUED
    AWAITING_PREFILL = "AwaitingPrefill", Stage.QUEUED
    PULLING = "Pulling", Stage.QUEUED
    RECEIVING = "Receiving", Stage.PREFILL
    LOADING = "Loading", Stage.QUEUED
    AWAITING_MEDIA = "AwaitingMedia", Stage.QUEUED
    AWAITING_GRANT = "AwaitingGrant", Stage.QUEUED
    PREFILLING = "Prefilling", Stage.PREFILL
    ENCODING = "Encoding", Stage.PREFILL
    DECODING = "Decoding", Stage.DECODE
    HANDING_OVER = "HandingOver", Stage.HANDOVER
    RETRACTED = "Retracted", Stage.QUEUED
    FINISHED = "Finished", Stage.OVER
    ABORTED = "Aborted", Stage.OVER

    stage: Stage

    def __new__(cls, name: str, stage: Stage = Stage.QUEUED) -> "RequestPhase":
        # A look-up by name gives no stage, and does not come here.
        phase = str.__new__(cls, name)
        phase._value_, phase.stage = name, stage
        return phase

    @property
    def is_queued(self) -> bool:
        """True if the request still waits for its next token to be computed."""
        return self.stage is Stage.QUEUED

    @property
    def is_running(self) -> bool:
        return self.stage in (Stage.PREFILL, Stage.DECODE, Stage.HANDOVER)


KEPT_MARKS = 64
"""Most life marks (states with times) kept for a request. After repeated retractions or hand-overs
its first marks and its last one remain."""


class LifeMark(Message):
    """The request entered `state` `at` seconds after it arrived."""

    state: RequestPhase
    at: float


def marked(life: list[LifeMark], mark: LifeMark) -> None:
    """Append to `life`; if it is full, replace the last mark."""
    if len(life) >= KEPT_MARKS:
        life.pop()
    life.append(mark)


_NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


class GatewayTransfer(Message):
    """A transfer planned by a gateway; the gateway calls both nodes for it. sender: HOST:PORT of
    the prefill node's gRPC server."""

    transfer_id: TransferId
    sender: str


class Fork(Message):
    """One more answer to a Submit's prompt, with an id and a seed of its own."""

    request_id: RequestId
    seed: int


class Purpose(Enum):
    """The purpose of a request.

    answer: generate tokens. hand_back: make a prefill node pull this engine's cached part of the
    prompt; no answer is wanted, and the request waits in no queue. inherit: the same for a state
    chosen by this engine to be handed on before the engine ends; no client submits it.
    """

    ANSWER = "answer"
    HAND_BACK = "hand_back"
    INHERIT = "inherit"


class FileCoding(StrEnum):
    """Form of an encoded picture's bytes. PLAIN: the file itself. BASE64: its text. GONE: the
    sender holds the bytes no longer, and the picture cannot be computed."""

    PLAIN = "plain"
    BASE64 = "base64"
    GONE = "gone"


class PictureFile(Message):
    """An encoded picture, decoded only if its rows must be computed.

    data: the file, in the form of `coding`, shared by reference. height, width: upright, by its
    header. place: of the picture in its request, for errors.
    """

    data: Media
    coding: FileCoding
    height: int
    width: int
    place: str

    @property
    def size(self) -> int:
        """Return the encoded file's bytes, without decoding base64; white space counts as data."""
        if self.coding is not FileCoding.BASE64:
            return len(self.data)
        return len(self.data) * 3 // 4 - self.data.ending(2).count(b"=")

    def content(self) -> bytes:
        """Return the encoded file. Raises ValueError for text other than base64; MediaGone,
        OSError. REQUIRES: it is not gone."""
        data = self.data.content()
        if self.coding is FileCoding.PLAIN:
            return data
        return binascii.a2b_base64(data.translate(None, b" \t\r\n"), strict_mode=True)


class PromptPicture(Message):
    """A picture in a prompt: one image, or one pair of video frames.

    start: index of its first placeholder, right behind its opening token. rows, columns: of its
    tokens. digest: names its content and size. It comes as a file, or as levels [patches, values]
    uint8: its patches, in the tower's order. source: all that the digest is made from; None:
    unknown, so another node cannot compute the prompt. second: the later frame of a pair; None: the
    file is all frames.
    """

    start: int
    rows: int
    columns: int
    digest: PictureDigest
    levels: NDArray[np.uint8] | None = None
    file: PictureFile | None = None
    source: PictureSource | None = None
    second: PictureFile | None = None

    @property
    def files(self) -> tuple[PictureFile, ...]:
        """Return its files, in the order of its frames."""
        return tuple(file for file in (self.file, self.second) if file is not None)

    def with_files(self, change: Callable[[PictureFile], PictureFile]) -> "PromptPicture":
        """Return the picture with its files changed."""
        if self.file is None:
            return self
        second = None if self.second is None else change(self.second)
        return replace(self, file=change(self.file), second=second)

    @property
    def run(self) -> KeyedRun:
        return KeyedRun(self.start, self.rows * self.columns, self.digest)


class Submit(Message):
    """Generate from `prompt`. salt isolates tenants; cursor is a session's place in the tree.

    marks: token counts of checkpoints wanted by the client (role boundaries). message_end: token
    count at the last message's end, before the answer's opening; the next turn may continue there.
    None: unknown or of no use. session: the conversation's name for operators; ignored by the
    engine. gateway_transfer: the transfer of the first hand-over, if a gateway made it.

    caller: differently named callers get equal parts of a scarce engine. priority: among a caller's
    requests the lowest goes first. patience: seconds until its client stops waiting for an answer
    to begin. targets: the request is refused immediately if it is expected to miss them. changed:
    tokens [begin, end) of the prompt that differed in the conversation's previous turn.

    prompt_logprobs: answered by PromptScored too, with this many likeliest tokens per position. The
    cache is not used then, because it has no logits. None: not asked for. forks: more answers, each
    with its own end; the prompt is computed once for all. purpose: see Purpose. prediction: the
    expected answer, used for drafts; it changes no token. pictures: by ascending place; they stand
    in the prompt as placeholders.
    """

    request_id: RequestId
    prompt: Tokens
    sampling: SamplingParams
    salt: bytes = b""
    cursor: int | None = None
    marks: tuple[int, ...] = ()
    session: str | None = None
    gateway_transfer: GatewayTransfer | None = None
    caller: str = ""
    priority: int = 0
    patience: float = math.inf
    targets: Targets = NO_TARGETS
    changed: tuple[int, int] | None = None
    prompt_logprobs: int | None = None
    forks: tuple[Fork, ...] = ()
    purpose: Purpose = Purpose.ANSWER
    prediction: Tokens = field(default_factory=lambda: _NO_TOKENS)
    message_end: int | None = None
    pictures: tuple[PromptPicture, ...] = ()

    @cached_property
    def keys(self) -> Keys:
        """Return the prompt's keys. REQUIRES: the pictures are where the message places them."""
        return prompt_keys(PromptTokens(self.prompt), [picture.run for picture in self.pictures])

    @property
    def answer_ids(self) -> tuple[RequestId, ...]:
        """Ids of all answers asked for."""
        return (self.request_id, *(fork.request_id for fork in self.forks))

    def of_fork(self, fork: Fork) -> "Submit":
        """Return the Submit for the fork alone."""
        sampling = replace(self.sampling, seed=fork.seed)
        return replace(self, request_id=fork.request_id, sampling=sampling, forks=())


class Abort(Message):
    """Abort a request. Idempotent; answered by Finished(ABORT) if the request still lived, else not
    answered."""

    request_id: RequestId


class Drain(Message):
    """Refuse new requests. Answered once all requests in flight have ended, or after an Undrain."""

    query_id: int


class TokenOut(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A sampled token.

    margin: distance of the choice from a tie, in logits (model/ops/sampling/reference.py). top: the
    likeliest tokens and their logprobs, as many as the request's top_logprobs.

    A struct, because there is one per token: it is made in a tenth of a frozen dataclass's time.
    """

    request_id: RequestId
    token: int
    logprob: float
    margin: float
    index: int
    top: TopLogprobs = ()


class TokensOut(Message):
    """Tokens sampled in one step for continuing answers, at most one per request.

    Columns of one length: tokens and indices [n] int32, logprobs and margins [n] float64, each as
    in TokenOut. tops: the likeliest tokens, by index in the columns, for requests with
    top_logprobs.
    """

    request_ids: tuple[RequestId, ...]
    tokens: Tokens
    logprobs: NDArray[np.float64]
    margins: NDArray[np.float64]
    indices: NDArray[np.int32]
    tops: Mapping[int, TopLogprobs] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.request_ids)

    def at(self, places: list[int]) -> "TokensOut":
        """Return a TokensOut with only the tokens at these places (indices), in their order."""
        return TokensOut(
            tuple(self.request_ids[place] for place in places),
            self.tokens[places],
            self.logprobs[places],
            self.margins[places],
            self.indices[places],
            {new: self.tops[old] for new, old in enumerate(places) if old in self.tops},
        )

    def each(self) -> Iterator[TokenOut]:
        """Return the same tokens, one message each."""
        tops = map(self.tops.get, range(len(self)), repeat(())) if self.tops else repeat(())
        return map(
            TokenOut,
            self.request_ids,
            self.tokens.tolist(),
            self.logprobs.tolist(),
            self.margins.tolist(),
            self.indices.tolist(),
            tops,
        )


class PromptScored(Message):
    """Scores of the prompt's tokens, from position `first` on.

    Positions follow each other from message to message, and end before the answer's first token.
    The columns are those of PromptScores (model/ops/sampling/prompt_scores.py).
    """

    request_id: RequestId
    first: int
    logprobs: NDArray[np.float64]
    ranks: NDArray[np.int32]
    top_tokens: NDArray[np.int32]
    top_logprobs: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.logprobs)


def tokens_apart(messages: Iterable[Any]) -> Iterator[Any]:
    """Yield the messages in order, with each TokensOut split into one message per token."""
    for message in messages:
        yield from message.each() if isinstance(message, TokensOut) else (message,)


class Finished(Message):
    """The end of an answer.

    life: the request's states so far. hint: the next turn, guessed from the answer's end
    (engine/scheduling/checkpoints.py). weights: versions of the weights that drew its tokens, in
    their order; empty: none drew any, or those of the start did.
    """

    request_id: RequestId
    reason: FinishReason
    usage: Usage
    life: tuple[LifeMark, ...] = ()
    hint: str = "unknown"
    weights: tuple[WeightsRun, ...] = ()


class Rejected(Message):
    """A request ended without an answer. targets: the request's time limits, as in Usage."""

    request_id: RequestId
    error: RequestError
    targets: Targets | None = None


class Undrain(Message):
    """Accept new requests again."""


class Drained(Message):
    """The answer to Drain. at_rest: True if all requests in flight have ended; False if an Undrain
    came first."""

    query_id: int
    at_rest: bool = True
