"""Engine messages of a hand-over to and from protobuf, as the decode node needs them.

What a prefill node reports is kept, counted and shown, so it is held to what one of this version
could report: readers raise PeerInvalid naming the field. Bytes and digests are judged elsewhere.
"""

import math
from dataclasses import replace

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.messages import (
    CAUSES,
    ESTIMATES,
    EVICTION_KINDS,
    TIERS,
    Choice,
    EvictedCheckpoint,
    Eviction,
    HitBreakdown,
    PullReport,
    RouteReport,
    TransferReport,
)
from tasuki.engine.messages.proto import (
    hit_from_proto,
    pulled_from_proto,
    route_from_proto,
    sampling_to_proto,
    transfer_from_proto,
)
from tasuki.model.ops.sampling.params import MAX_TOP_LOGPROBS, TopLogprobs
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.messages import (
    drain_from_wire,
    drain_to_wire,
    report_to_wire,
    sender_track_from_wire,
    timeline_from_wire,
    windows_from_wire,
    windows_to_wire,
)
from tasuki.transfer.reports import Drain, HandoverTimeline, ReceiverTrack, SenderTrack, SendReport
from tasuki.transfer.rooms import messages as say

_CHECKPOINT_KINDS = frozenset(kind.value for kind in CheckpointKind)
_CHOICES = frozenset(choice.value for choice in Choice)
_MOST_TOKENS = 2**32 - 1
"""Also of windows and pages."""


def bounded_hit(hit: HitBreakdown) -> HitBreakdown:
    if hit.in_pages is not None:
        hit = replace(hit, in_pages=bounded_hit(hit.in_pages))
    for field in ("prompt_tokens", "kv_tokens", "usable_tokens"):
        _tokens(getattr(hit, field), f"hit.{field}")
    if hit.template_changed_at is not None:
        raise PeerInvalid("hit.template_changed_at is no peer's field")
    for cause, tokens in hit.causes.items():
        _tokens(tokens, f"hit.causes[{peer_values.known(cause, 'hit.causes', CAUSES)}]")
    others = sum(hit.causes.values())
    if hit.usable_tokens + others != hit.prompt_tokens:
        raise PeerInvalid(
            f"hit of {hit.prompt_tokens} tokens has {hit.usable_tokens} usable ones and "
            f"{others} others"
        )
    for tier, tokens in hit.loaded.items():
        _tokens(tokens, f"hit.loaded[{peer_values.known(tier, 'hit.loaded', TIERS)}]")
    if sum(hit.loaded.values()) > hit.usable_tokens:
        raise PeerInvalid(
            f"hit of {hit.usable_tokens} usable tokens has {sum(hit.loaded.values())} loaded ones"
        )
    if hit.checkpoint_source is not None:
        peer_values.known(hit.checkpoint_source, "hit.checkpoint_source", _CHECKPOINT_KINDS)
    return hit if hit.lost is None else replace(hit, lost=_bounded_evicted_checkpoint(hit.lost))


def _bounded_evicted_checkpoint(lost: EvictedCheckpoint) -> EvictedCheckpoint:
    _tokens(lost.tokens, "lost.tokens")
    peer_values.seconds(lost.slabs_since, "lost.slabs_since", peer_values.MOST_BYTES)
    return lost if lost.eviction is None else replace(lost, eviction=_bounded(lost.eviction))


def _bounded(eviction: Eviction) -> Eviction:
    peer_values.known(eviction.kind, "eviction.kind", EVICTION_KINDS)
    kind, score, taken_by = eviction.checkpoint_kind, eviction.score, eviction.taken_by
    if kind is not None:
        peer_values.known(kind, "eviction.checkpoint_kind", _CHECKPOINT_KINDS)
    _tokens(eviction.tokens, "eviction.tokens")
    peer_values.within(eviction.slabs, "eviction.slabs", 0, peer_values.MOST_BYTES)
    if score is not None:
        peer_values.within(score, "eviction.score", -math.inf, math.inf)
    # A client over there may have named it.
    return eviction if taken_by is None else replace(eviction, taken_by=peer_values.shown(taken_by))


def bounded_pull(pulled: PullReport) -> PullReport:
    _tokens(pulled.tokens, "pulled.tokens")
    peer_values.count(pulled.bytes, "pulled.bytes")
    peer_values.seconds(pulled.seconds, "pulled.seconds")
    return pulled


def bounded_route(route: RouteReport) -> RouteReport:
    peer_values.known(route.choice, "route.choice", _CHOICES)
    for name, seconds in route.estimates.items():
        peer_values.known(name, "route.estimates", ESTIMATES)
        peer_values.seconds(seconds, f"route.estimates[{name}]", peer_values.MOST_BYTES)
    return route


def bounded_transfer(report: TransferReport) -> TransferReport:
    peer_values.count(report.bytes, "report.bytes")
    _tokens(report.windows, "report.windows")
    _tokens(report.pages, "report.pages")
    peer_values.seconds(report.hidden_seconds, "report.hidden_seconds")
    peer_values.seconds(report.exposed_seconds, "report.exposed_seconds")
    return report


def _tokens(count: int, field: str) -> None:
    peer_values.count(count, field, _MOST_TOKENS)


_TOKEN = np.dtype("<i4")
_LONGEST_SALT = 1 << 12
_HEIR_OUTCOMES = {
    m.HeirOutcome.TAKEN: pb.HEIR_OUTCOME_TAKEN,
    m.HeirOutcome.HELD: pb.HEIR_OUTCOME_HELD,
    m.HeirOutcome.DECLINED: pb.HEIR_OUTCOME_DECLINED,
    m.HeirOutcome.CUT: pb.HEIR_OUTCOME_CUT,
}


def reserve(wanted: m.HandoverWanted, traceparent: str) -> pb.ReceiverMessage:
    """traceparent: empty where the request is not traced."""
    ticket = wanted.ticket
    return pb.ReceiverMessage(
        reserve=pb.Reserve(
            ticket=pb.Ticket(
                room=ticket.room,
                generation=ticket.generation,
                kv_matched=ticket.kv_matched,
                sampling=sampling_to_proto(ticket.sampling),
                salt=ticket.salt,
                marks=ticket.marks,
                offered=ticket.offered,
                caller=ticket.caller,
                priority=ticket.priority,
                due_seconds=_due_seconds(ticket),
                message_end=ticket.message_end,
            ),
            prompt=wanted.prompt.astype("<i4", copy=False).tobytes(),
            by_gateway=wanted.sender is not None,
            request_id=wanted.request_id,
            traceparent=traceparent,
        )
    )


def fetch(wanted: m.FetchWanted) -> pb.ReceiverMessage:
    tokens = wanted.prompt.astype("<i4", copy=False).tobytes()
    ticket = wanted.ticket
    return pb.ReceiverMessage(
        fetch=pb.Fetch(generation=ticket.generation, tokens=tokens, salt=ticket.salt)
    )


def _due_seconds(ticket: m.Ticket) -> float | None:
    due = ticket.due_seconds
    return None if due is None else min(due, peer_values.LONGEST_SECONDS)


def left_state_from_wire(answer: pb.TakeOverResponse) -> m.GivenState | None:
    """None: it brings none. Raises PeerInvalid."""
    if not answer.HasField("state"):
        return None
    state = answer.state
    if not state.tokens or len(state.tokens) % _TOKEN.itemsize:
        raise PeerInvalid(f"state.tokens has {len(state.tokens)} bytes, four make a token")
    peer_values.count(len(state.salt), "bytes of state.salt", _LONGEST_SALT)
    tokens = np.frombuffer(state.tokens, dtype=_TOKEN).astype(np.int32)
    return m.GivenState(state.number, tokens, state.salt, state.known)


def taken_over(number: int, passed: m.StatePassedOn) -> pb.TakenOver:
    """number: as the prefill node knows the state."""
    return pb.TakenOver(
        number=number,
        outcome=_HEIR_OUTCOMES.get(passed.outcome, pb.HEIR_OUTCOME_LOST),
        bytes=passed.bytes,
        heir=passed.heir,
    )


def grant(granted: m.Grant) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(
        grant=pb.Grant(
            generation=granted.generation,
            first_page=granted.first_page,
            pages=granted.pages,
            slot=granted.slot,
        )
    )


def read_message(room: m.RoomId, message: pb.SenderMessage, prefilled_on: str) -> say.Message:
    """Return what the prefill node said in the room, within bounds. prefilled_on: its name."""
    try:
        return _read_message(room, message, prefilled_on)
    except PeerInvalid as error:
        return say.Contradiction(str(error))


def _read_message(room: m.RoomId, message: pb.SenderMessage, prefilled_on: str) -> say.Message:
    """Raises PeerInvalid naming the field."""
    match message.WhichOneof("message"):
        case "queued":
            queued, wait = message.queued, None
            if queued.HasField("wait_seconds"):
                wait = peer_values.seconds(queued.wait_seconds, "queued.wait_seconds")
            return say.Queued(queued.position, wait)
        case "accepted":
            return say.Accepted()
        case "refused":
            return say.Refused(refused_from_wire(room, message.refused))
        case "ready":
            remote = ready_from_wire(room, message.ready, prefilled_on)
            return say.Ready(message.ready.generation, remote)
        case "held":
            return say.Held(message.held.generation)
        case "done":
            done = message.done
            return say.Done(done.generation, windows_from_wire(done.windows), done)
        case "failed":
            failed = message.failed
            return say.Ended(drain_from_wire(failed.drain), failed.reason)
        case "aborted":
            return say.Ended(drain_from_wire(message.aborted.drain))
        case "pull":
            return say.PullAsked(pull_from_wire(room, message.pull))
        case "stop_pull":
            return say.StopPull()
    return say.Unknown()


def refused_from_wire(room: m.RoomId, refused: pb.Refused) -> m.HandoverFailed:
    waited = refused.kind == pb.ERROR_KIND_QUEUE_TIMEOUT
    cause = m.LossCause.QUEUE_TIMEOUT if waited else m.LossCause.REFUSED
    return m.HandoverFailed(room, f"refused: {peer_values.text(refused.reason)}", cause=cause)


def ready_from_wire(room: m.RoomId, ready: pb.Ready, prefilled_on: str) -> m.RemoteReady:
    """Raises PeerInvalid, as all that end in from_wire. The token is judged by who knows the
    vocabulary."""
    pulled = pulled_from_proto(ready.pulled) if ready.HasField("pulled") else None
    route = route_from_proto(ready.route) if ready.HasField("route") else None
    return m.RemoteReady(
        room=room,
        token=ready.token,
        logprob=peer_values.finite(ready.logprob, "ready.logprob"),
        margin=peer_values.within(ready.margin, "ready.margin", -math.inf, math.inf),
        hit=bounded_hit(hit_from_proto(ready.hit)),
        prefilled_on=prefilled_on,
        tail_seconds=_tail(ready),
        pulled=None if pulled is None else bounded_pull(pulled),
        route=None if route is None else bounded_route(route),
        top=_top(ready),
    )


def pull_from_wire(room: m.RoomId, pull: pb.Pull) -> m.PullGrant:
    return m.PullGrant(
        room, pull.generation, pull.tokens, pull.first_page, tuple(pull.pages), pull.slot
    )


def pull_done(generation: int, report: SendReport, track: SenderTrack) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(
        pull_done=pb.PullDone(
            generation=generation,
            windows=windows_to_wire(report.digests),
            report=report_to_wire(report, track),
        )
    )


def pull_failed(generation: int, reason: str, drain: Drain) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(
        pull_failed=pb.PullFailed(generation=generation, reason=reason, drain=drain_to_wire(drain))
    )


def done_from_wire(room: m.RoomId, done: pb.Done, received: ReceiverTrack) -> m.RemoteDone:
    pull = timeline_from_wire(done.pull) if done.HasField("pull") else None
    timeline = HandoverTimeline(sender_track_from_wire(done.report.track), received)
    transfer = bounded_transfer(transfer_from_proto(done.report, timeline))
    return m.RemoteDone(room, transfer, pull)


def _top(ready: pb.Ready) -> TopLogprobs:
    """Shown to clients: any id of the int32 is a token's name there, and none is looked up."""
    if len(ready.top) > MAX_TOP_LOGPROBS:
        raise PeerInvalid(f"ready.top has {len(ready.top)} tokens, at most {MAX_TOP_LOGPROBS}")
    return tuple(
        (
            peer_values.count(item.token, "ready.top.token", 2**31 - 1),
            peer_values.finite(item.logprob, "ready.top.logprob"),
        )
        for item in ready.top
    )


def _tail(ready: pb.Ready) -> float | None:
    """An estimate, and no estimate is as good as a wrong one."""
    if (
        not ready.HasField("tail_seconds")
        or not 0 <= ready.tail_seconds <= peer_values.LONGEST_SECONDS
    ):
        return None
    return ready.tail_seconds
