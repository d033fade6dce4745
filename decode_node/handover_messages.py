"""Engine messages of a hand-over to and from protobuf, as the decode node needs them.

What a prefill node tells is kept, counted and shown, so it is held to what one of this version
could tell: readers raise PeerInvalid naming the field. Bytes and digests are judged elsewhere.
"""

import math
from dataclasses import replace

from tasuki.engine import messages as m
from tasuki.engine.messages import CAUSES, ESTIMATES, EVICTION_KINDS, Choice, Eviction, LostState
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.server.auth.request_context import TRACE_HEADER
from tasuki.server.grpc.response_stream import REQUEST_ID_KEY
from tasuki.transfer import peer_values as told
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.messages import drain_to_wire, report_to_wire, windows_to_wire
from tasuki.transfer.protocol.timeline_messages import sender_track_from_wire, timeline_from_wire
from tasuki.transfer.timeline import HandoverTimeline, ReceiverTrack, SenderTrack
from tasuki.transfer.windows.send_report import Drain, SendReport

_CHECKPOINT_KINDS = frozenset(kind.value for kind in CheckpointKind)
_CHOICES = frozenset(choice.value for choice in Choice)


def trail(request: m.RequestId, traceparent: str) -> tuple[tuple[str, str], ...]:
    """A room's metadata: what the prefill node's log and spans are to be found by."""
    named = (REQUEST_ID_KEY, str(request))
    return (named, (TRACE_HEADER, traceparent)) if traceparent else (named,)


def reserve(connection: str, wanted: m.HandoverWanted) -> pb.ReceiverMessage:
    ticket = wanted.ticket
    sampling = ticket.sampling
    return pb.ReceiverMessage(
        reserve=pb.Reserve(
            connection_id=connection,
            ticket=pb.Ticket(
                room=ticket.room,
                generation=ticket.generation,
                kv_matched=ticket.kv_matched,
                sampling=pb.Sampling(
                    max_new_tokens=sampling.max_new_tokens,
                    temperature=sampling.temperature,
                    top_k=sampling.top_k,
                    top_p=sampling.top_p,
                    seed=sampling.seed,
                    stop_token_ids=sampling.stop_token_ids,
                    ignore_eos=sampling.ignore_eos,
                ),
                salt=ticket.salt,
                marks=ticket.marks,
                offered=ticket.offered,
            ),
            prompt=wanted.prompt.astype("<i4", copy=False).tobytes(),
            told=wanted.sender is not None,
        )
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


def abort(generation: int) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(abort=pb.Abort(generation=generation))


def refused_from_wire(room: m.RoomId, refused: pb.Refused) -> m.HandoverLost:
    waited = refused.kind == pb.ERROR_KIND_QUEUE_TIMEOUT
    cause = m.LossCause.QUEUE_TIMEOUT if waited else m.LossCause.REFUSED
    return m.HandoverLost(room, f"refused: {told.text(refused.reason)}", cause=cause)


def ready_from_wire(room: m.RoomId, ready: pb.Ready, prefilled_on: str) -> m.RemoteReady:
    """Raises PeerInvalid, as all that end in from_wire. The token is judged by who knows the
    vocabulary."""
    hit = ready.hit
    return m.RemoteReady(
        room=room,
        token=ready.token,
        logprob=told.finite(ready.logprob, "ready.logprob"),
        margin=told.within(ready.margin, "ready.margin", -math.inf, math.inf),
        hit=replace(_hit(hit), in_pages=_hit(hit.in_pages) if hit.HasField("in_pages") else None),
        prefilled_on=prefilled_on,
        tail_seconds=_tail(ready),
        pulled=pulled_from_wire(ready.pulled) if ready.HasField("pulled") else None,
        route=route_from_wire(ready.route) if ready.HasField("route") else None,
    )


def pulled_from_wire(pulled: pb.Pulled) -> m.PullReport:
    return m.PullReport(
        pulled.tokens,
        told.count(pulled.bytes, "pulled.bytes"),
        told.seconds(pulled.seconds, "pulled.seconds"),
    )


def route_from_wire(route: pb.Route) -> m.RouteReport:
    return m.RouteReport(
        told.known(route.choice, "route.choice", _CHOICES),
        {
            told.known(name, "route.estimates", ESTIMATES): told.seconds(
                value, f"route.estimates[{name}]", told.MOST_BYTES
            )
            for name, value in route.estimates.items()
        },
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
    return m.RemoteDone(room, _report(done.report, received), pull)


def _report(report: pb.Report, received: ReceiverTrack) -> m.TransferReport:
    return m.TransferReport(
        bytes=told.count(report.bytes, "report.bytes"),
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=told.seconds(report.hidden_seconds, "report.hidden_seconds"),
        exposed_seconds=told.seconds(report.exposed_seconds, "report.exposed_seconds"),
        timeline=HandoverTimeline(sender_track_from_wire(report.track), received),
    )


def _hit(hit: pb.Hit) -> m.HitBreakdown:
    causes = {told.known(cause, "hit.causes", CAUSES): lost for cause, lost in hit.causes.items()}
    if hit.usable_tokens + sum(causes.values()) != hit.prompt_tokens:
        raise PeerInvalid(
            f"hit of {hit.prompt_tokens} tokens has {hit.usable_tokens} usable ones and "
            f"{sum(causes.values())} others"
        )
    source = hit.checkpoint_source if hit.HasField("checkpoint_source") else None
    return m.HitBreakdown(
        prompt_tokens=hit.prompt_tokens,
        kv_tokens=hit.kv_tokens,
        usable_tokens=hit.usable_tokens,
        causes=causes,
        checkpoint_source=(
            None
            if source is None
            else told.known(source, "hit.checkpoint_source", _CHECKPOINT_KINDS)
        ),
        lost=_lost(hit.lost) if hit.HasField("lost") else None,
    )


def _tail(ready: pb.Ready) -> float | None:
    """An estimate, and no estimate is as good as a wrong one."""
    if not ready.HasField("tail_seconds") or not 0 <= ready.tail_seconds <= told.LONGEST_SECONDS:
        return None
    return ready.tail_seconds


def _lost(lost: pb.LostState) -> LostState:
    since = told.seconds(lost.slabs_since, "lost.slabs_since", told.MOST_BYTES)
    eviction = _eviction(lost.eviction) if lost.HasField("eviction") else None
    return LostState(lost.tokens, since, eviction)


def _eviction(eviction: pb.Eviction) -> Eviction:
    kind = eviction.checkpoint_kind if eviction.HasField("checkpoint_kind") else None
    score = eviction.score if eviction.HasField("score") else None
    taken_by = eviction.taken_by if eviction.HasField("taken_by") else None
    return Eviction(
        eviction.sequence,
        told.known(eviction.kind, "eviction.kind", EVICTION_KINDS),
        None if kind is None else told.known(kind, "eviction.checkpoint_kind", _CHECKPOINT_KINDS),
        eviction.tokens,
        told.within(eviction.slabs, "eviction.slabs", 0, told.MOST_BYTES),
        None if score is None else told.within(score, "eviction.score", -math.inf, math.inf),
        # A client over there may have named it.
        None if taken_by is None else told.shown(taken_by),
    )
