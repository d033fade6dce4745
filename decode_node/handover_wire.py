"""Engine messages of a hand-over to and from protobuf, as the decode node needs them."""

from dataclasses import replace

from ..engine import messages as m
from ..engine.losses import Eviction, LostState
from ..front.answer_stream import REQUEST_ID_KEY
from ..front.origin import TRACE_HEADER
from ..proto import handover_pb2 as pb
from ..transfer.outgoing import Drain
from ..transfer.report import SendReport
from ..transfer.timeline import HandoverTimeline, ReceiverTrack, SenderTrack
from ..transfer.timeline_wire import sender_track_from_wire, timeline_from_wire
from ..transfer.wire import drain_to_wire, report_to_wire, windows_to_wire


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
    return m.HandoverLost(room, f"refused: {refused.reason}", cause=cause)


def ready_from_wire(room: m.RoomId, ready: pb.Ready, prefilled_on: str) -> m.RemoteReady:
    hit = ready.hit
    return m.RemoteReady(
        room=room,
        token=ready.token,
        logprob=ready.logprob,
        margin=ready.margin,
        hit=replace(_hit(hit), in_pages=_hit(hit.in_pages) if hit.HasField("in_pages") else None),
        prefilled_on=prefilled_on,
        tail_seconds=ready.tail_seconds if ready.HasField("tail_seconds") else None,
        pulled=pulled_from_wire(ready.pulled) if ready.HasField("pulled") else None,
        route=route_from_wire(ready.route) if ready.HasField("route") else None,
    )


def _hit(hit: pb.Hit) -> m.HitBreakdown:
    return m.HitBreakdown(
        prompt_tokens=hit.prompt_tokens,
        kv_tokens=hit.kv_tokens,
        usable_tokens=hit.usable_tokens,
        causes=dict(hit.causes),
        checkpoint_source=hit.checkpoint_source if hit.HasField("checkpoint_source") else None,
        lost=_lost(hit.lost) if hit.HasField("lost") else None,
    )


def pulled_from_wire(pulled: pb.Pulled) -> m.PullReport:
    return m.PullReport(pulled.tokens, pulled.bytes, pulled.seconds)


def route_from_wire(route: pb.Route) -> m.RouteReport:
    return m.RouteReport(route.choice, dict(route.estimates))


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
        bytes=report.bytes,
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=report.hidden_seconds,
        exposed_seconds=report.exposed_seconds,
        timeline=HandoverTimeline(sender_track_from_wire(report.track), received),
    )


def _lost(lost: pb.LostState) -> LostState:
    if not lost.HasField("eviction"):
        return LostState(lost.tokens, lost.slabs_since)
    told = lost.eviction
    return LostState(
        lost.tokens,
        lost.slabs_since,
        Eviction(
            told.sequence,
            told.kind,
            told.checkpoint_kind if told.HasField("checkpoint_kind") else None,
            told.tokens,
            told.slabs,
            told.score if told.HasField("score") else None,
            told.taken_by if told.HasField("taken_by") else None,
        ),
    )
