"""Engine messages of a hand-over to and from protobuf, as the decode node needs them.

What a prefill node reports is kept, counted and shown, so it is held to what one of this version
could report: readers raise PeerInvalid naming the field. Bytes and digests are judged elsewhere.
"""

import math

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.messages.proto import (
    hit_from_proto,
    pulled_from_proto,
    route_from_proto,
    sampling_to_proto,
    transfer_from_proto,
)
from tasuki.model.ops.sampling.params import MAX_TOP_LOGPROBS, TopLogprobs
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.protocol.messages import drain_to_wire, report_to_wire, windows_to_wire
from tasuki.transfer.protocol.timeline_messages import sender_track_from_wire, timeline_from_wire
from tasuki.transfer.reports import Drain, HandoverTimeline, ReceiverTrack, SenderTrack, SendReport

from .peer_reports import bounded_hit, bounded_pull, bounded_route, bounded_transfer

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
