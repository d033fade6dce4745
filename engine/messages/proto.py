"""Conversions of reports, sampling parameters and cache events to and from protobuf, for clients
and for hand-overs.

Pure. Each table here converts one message class unchanged. Tables named PEERS_* check another
node's reports against bounds, and raise PeerInvalid.
"""

from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tasuki.proto import handover_pb2, inference_pb2, report_pb2
from tasuki.pycache.packed import CacheEvent, EventGap
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.wire import Codec, Wire, numbered, numbers_of, rows

from .pictures import PictureOutcome, PicturesReport, PictureUse
from .reports import (
    DraftUse,
    EvictedCheckpoint,
    Eviction,
    HitBreakdown,
    PrefillBid,
    PrefillChoice,
    PullReport,
    RouteReport,
    TransferReport,
    Usage,
)
from .requests import Finished
from .types import FinishReason, Targets
from .updates import WeightsRun

_name = Codec(lambda name: name or None)
EVENT = Wire(
    CacheEvent,
    inference_pb2.CacheEvent,
    apart=["checkpoint_kind", "page"],
    prefix=_name,
    parent=_name,
    namespace=_name,
)
GAP = Wire(EventGap, inference_pb2.EventGap)
EVICTION = Wire(Eviction, report_pb2.Eviction)
LOST = Wire(EvictedCheckpoint, report_pb2.LostState, eviction=EVICTION)
PLAIN_HIT = Wire(HitBreakdown, report_pb2.HitBreakdown, apart=["in_pages"], lost=LOST)
"""A HitBreakdown without its `in_pages`, as sent to clients."""
HIT = Wire(HitBreakdown, report_pb2.HitBreakdown, lost=LOST, in_pages=PLAIN_HIT)
"""A HitBreakdown with one level of `in_pages`. Deeper levels have no meaning, and a peer may send
any number."""
PULLED = Wire(PullReport, report_pb2.Pulled, apart=["timeline"])
ROUTE = Wire(RouteReport, report_pb2.Route)
TRANSFER = Wire(TransferReport, report_pb2.TransferReport, apart=["timeline", "track"])
"""A TransferReport without the sender's track, as transfer/protocol/messages.py writes it."""
PEERS_PULLED = PULLED.bounded("pulled")
PEERS_ROUTE = ROUTE.bounded("route")
PEERS_TRANSFER = TRANSFER.bounded("report")


def _sums_hold(hit: HitBreakdown) -> HitBreakdown:
    others, loaded = sum(hit.causes.values()), sum(hit.loaded.values())
    if hit.usable_tokens + others != hit.prompt_tokens:
        raise PeerInvalid(
            f"hit of {hit.prompt_tokens} tokens has {hit.usable_tokens} usable ones and "
            f"{others} others"
        )
    if loaded > hit.usable_tokens:
        raise PeerInvalid(f"hit of {hit.usable_tokens} usable tokens has {loaded} loaded ones")
    return hit


_PEERS_LOST = LOST.bounded("lost", eviction=EVICTION.bounded("eviction"))
PEERS_HIT = HIT.bounded(
    "hit",
    _sums_hold,
    lost=_PEERS_LOST,
    in_pages=PLAIN_HIT.bounded("hit", _sums_hold, lost=_PEERS_LOST),
)


PREFILL_CHOICE = Wire(
    PrefillChoice, report_pb2.PrefillChoice, bids=Wire(PrefillBid, report_pb2.PrefillBid)
)
TARGETS = Wire(
    Targets,
    inference_pb2.Targets,
    first_token=Codec(name="first_token_seconds"),
    per_token=Codec(name="per_token_seconds"),
    answer=Codec(name="answer_seconds"),
)
PICTURES = Wire(
    PicturesReport,
    inference_pb2.Pictures,
    each=Wire(PictureUse, inference_pb2.PictureUse, outcome=Codec(PictureOutcome)),
)
USAGE = Wire(
    Usage,
    inference_pb2.Usage,
    hit=Codec(HIT.from_wire, PLAIN_HIT.to_wire),
    transfer=TRANSFER,
    time_to_first_token=Codec(name="time_to_first_token_seconds"),
    pulled=PULLED,
    route=ROUTE,
    prefill_choice=PREFILL_CHOICE,
    targets=TARGETS,
    drafts=Wire(DraftUse, inference_pb2.Drafts),
    pictures=PICTURES,
)
FINISHED = Wire(
    Finished,
    inference_pb2.Finished,
    apart=["request_id", "life", "hint"],
    reason=numbered(FinishReason, inference_pb2.FinishReason),
    usage=USAGE,
    weights=Wire(WeightsRun, inference_pb2.WeightsRun),
)


_REASONS: dict[int, FinishReason] = {
    number: reason
    for reason, number in numbers_of(FinishReason, inference_pb2.FinishReason).items()
}


def finish_reason_from_proto(reason: inference_pb2.FinishReason) -> FinishReason:
    return _REASONS[reason]


MOST_ANSWER_TOKENS = 1 << 30
"""Most answer tokens of one request. A prompt of the largest message plus this many tokens fit the
scheduler's int32 columns."""


def _kind_from_wire(kind: str) -> GrammarKind:
    try:
        return GrammarKind(kind)
    except ValueError as error:
        raise ValueError(f"grammar is of a kind not known here: {kind!r:.40}") from error


SAMPLING = Wire(
    SamplingParams,
    handover_pb2.Sampling,
    logit_bias=rows(handover_pb2.TokenBias, "token", "bias"),
    bad_words=Codec(
        lambda words: tuple(tuple(word.ids) for word in words),
        lambda words: [handover_pb2.TokenSequence(ids=word) for word in words],
    ),
    grammar=Wire(Grammar, handover_pb2.Grammar, kind=Codec(_kind_from_wire)),
    thinking=Wire(ThinkingBudget, handover_pb2.ThinkingBudget),
)
"""Sampling parameters as sent in a transfer request: every field is set, although a client may
leave some out."""


def sampling_from_proto(sampling: handover_pb2.Sampling) -> SamplingParams:
    """Read sampling parameters. Raises ValueError naming the field. At least one token is sampled:
    a hand-over ends with it. A prefill node does not compute the rest of the answer, so its memory
    does not bound max_new_tokens; MOST_ANSWER_TOKENS does."""
    if not sampling.max_new_tokens:
        raise ValueError("max_new_tokens must be at least 1 in a hand-over, not 0")
    if sampling.max_new_tokens > MOST_ANSWER_TOKENS:
        raise ValueError(
            f"max_new_tokens must be at most {MOST_ANSWER_TOKENS} in a hand-over, "
            f"not {sampling.max_new_tokens}"
        )
    return SAMPLING.from_wire(sampling)
