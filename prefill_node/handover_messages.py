"""Engine messages of a hand-over to and from protobuf, as the prefill node needs them.

What a receiver sends is bounded here, field by field, before an engine sees any of it.
"""

from dataclasses import replace

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.messages.proto import (
    hit_to_proto,
    pulled_to_proto,
    route_to_proto,
    sampling_from_proto,
    top_to_proto,
)
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.transfer import peer_values
from tasuki.transfer.protocol.messages import report_to_wire, windows_to_wire
from tasuki.transfer.protocol.timeline_messages import timeline_to_wire
from tasuki.transfer.reports import HandoverTimeline, SenderTrack, SendReport

_ERROR_KINDS = {
    m.ErrorKind.INVALID: pb.ERROR_KIND_INVALID,
    m.ErrorKind.TOO_LONG: pb.ERROR_KIND_TOO_LONG,
    m.ErrorKind.DRAINING: pb.ERROR_KIND_DRAINING,
    m.ErrorKind.QUEUE_TIMEOUT: pb.ERROR_KIND_QUEUE_TIMEOUT,
    m.ErrorKind.INTERNAL: pb.ERROR_KIND_INTERNAL,
}

_FETCH_REFUSALS = {
    m.FetchRefusal.NOT_HELD: pb.ERROR_KIND_NOT_HELD,
    m.FetchRefusal.BUSY: pb.ERROR_KIND_BUSY,
}


_HEIR_OUTCOMES = {
    pb.HEIR_OUTCOME_TAKEN: m.HeirOutcome.TAKEN,
    pb.HEIR_OUTCOME_HELD: m.HeirOutcome.HELD,
    pb.HEIR_OUTCOME_DECLINED: m.HeirOutcome.DECLINED,
    pb.HEIR_OUTCOME_LOST: m.HeirOutcome.LOST,
    pb.HEIR_OUTCOME_CUT: m.HeirOutcome.CUT,
}


def left_state(left: m.LeftState) -> pb.TakeOverResponse:
    given = left.state
    if given is None:
        return pb.TakeOverResponse(over=left.over)
    state = pb.LeftState(
        number=given.number,
        tokens=given.prompt.astype("<i4", copy=False).tobytes(),
        salt=given.salt,
        known=given.known,
    )
    return pb.TakeOverResponse(state=state, over=left.over)


def taken_over_from_wire(done: pb.TakenOver) -> m.LeftTakenOver:
    """Raises PeerInvalid naming the field. An outcome that this version does not know is a loss."""
    return m.LeftTakenOver(
        done.number,
        _HEIR_OUTCOMES.get(done.outcome, m.HeirOutcome.LOST),
        peer_values.count(done.bytes, "done.bytes"),
        peer_values.name(done.heir, "done.heir"),
    )


def trail_from_wire(reserve: pb.Reserve) -> tuple[str, str]:
    """A room's request id and traceparent; empty where the receiver sent none."""
    return peer_values.shown(reserve.request_id), peer_values.shown(reserve.traceparent)


_TOKEN = np.dtype("<i4")
_HIGHEST_INT32 = 2**31 - 1
_MOST_STOP_TOKENS = 1 << 12
_LONGEST_SALT = 1 << 12
_LONGEST_CALLER = 1 << 12


class InvalidReserve(ValueError):
    """A Reserve or Fetch that no receiver of this version sends. Names the field."""


def _tokens(sent: bytes, field: str) -> m.Tokens:
    if not sent:
        raise InvalidReserve(f"{field} is empty: give at least one token")
    if len(sent) % _TOKEN.itemsize:
        raise InvalidReserve(f"{field} has {len(sent)} bytes, four make a token")
    return np.frombuffer(sent, dtype=_TOKEN).astype(np.int32)


def _salt(sent: bytes, field: str) -> bytes:
    if len(sent) > _LONGEST_SALT:
        raise InvalidReserve(f"{field} has {len(sent)} bytes, at most {_LONGEST_SALT}")
    return sent


def _require_named(room: int, generation: int) -> None:
    if not 0 < room < 2**63:
        raise InvalidReserve(f"ticket.room {room} is not in [1, 2^63)")
    if not 0 <= generation < 2**63:
        raise InvalidReserve(f"ticket.generation {generation} is not in [0, 2^63)")


def fetch_from_wire(room: int, fetch: pb.Fetch, connection: str) -> m.FetchReserve:
    """connection: whose room it is. Raises InvalidReserve naming the field."""
    _require_named(room, fetch.generation)
    prompt = _tokens(fetch.tokens, "tokens")
    ticket = m.FetchTicket(m.RoomId(room), fetch.generation, _salt(fetch.salt, "salt"))
    return m.FetchReserve(ticket, prompt, connection)


def reserve_from_wire(reserve: pb.Reserve, connection: str) -> m.PrefillReserve:
    """connection: whose room it is. Raises InvalidReserve naming the field."""
    ticket = reserve.ticket
    _require_named(ticket.room, ticket.generation)
    prompt = _tokens(reserve.prompt, "prompt")
    if ticket.offered >= len(prompt):
        raise InvalidReserve(
            f"ticket.offered {ticket.offered} is not less than the prompt's {len(prompt)}"
        )
    salt = _salt(ticket.salt, "ticket.salt")
    if len(ticket.caller) > _LONGEST_CALLER:
        raise InvalidReserve(
            f"ticket.caller has {len(ticket.caller)} characters, at most {_LONGEST_CALLER}"
        )
    # Each token can have one.
    if len(ticket.marks) > len(prompt):
        raise InvalidReserve(f"ticket.marks has {len(ticket.marks)} of {len(prompt)} tokens")
    message_end = ticket.message_end if ticket.HasField("message_end") else None
    if message_end is not None and not 0 < message_end < len(prompt):
        raise InvalidReserve(
            f"ticket.message_end {message_end} is not inside the prompt's {len(prompt)} tokens"
        )
    wire = ticket.sampling
    if wire.top_k > _HIGHEST_INT32:
        raise InvalidReserve(f"ticket.sampling: top_k {wire.top_k} is not less than 2^31")
    if not wire.temperature <= _HIGHEST_INT32:
        raise InvalidReserve(f"ticket.sampling: temperature is {wire.temperature}")
    if len(wire.stop_token_ids) > _MOST_STOP_TOKENS:
        raise InvalidReserve(
            f"ticket.sampling: {len(wire.stop_token_ids)} stop_token_ids, at most "
            f"{_MOST_STOP_TOKENS}"
        )
    try:
        sampling = sampling_from_proto(wire)
    except ValueError as error:
        raise InvalidReserve(f"ticket.sampling: {error}") from error
    return m.PrefillReserve(
        m.Ticket(
            room=m.RoomId(ticket.room),
            generation=ticket.generation,
            kv_matched=ticket.kv_matched,
            sampling=sampling,
            salt=salt,
            marks=tuple(ticket.marks),
            offered=ticket.offered,
            caller=ticket.caller,
            priority=ticket.priority,
            due_seconds=_due_seconds(ticket),
            message_end=message_end,
        ),
        prompt,
        connection,
    )


def _due_seconds(ticket: pb.Ticket) -> float | None:
    if not ticket.HasField("due_seconds"):
        return None
    # NaN is in no range.
    if not 0 < ticket.due_seconds <= peer_values.LONGEST_SECONDS:
        raise InvalidReserve(f"ticket.due_seconds is {ticket.due_seconds}: no time of a day")
    return ticket.due_seconds


def grant_from_wire(room: m.RoomId, grant: pb.Grant) -> m.Grant:
    slot = grant.slot if grant.HasField("slot") else None
    return m.Grant(room, grant.generation, grant.first_page, tuple(grant.pages), slot)


def refused(error: m.RequestError) -> pb.SenderMessage:
    kind = _ERROR_KINDS[error.kind]
    return pb.SenderMessage(refused=pb.Refused(kind=kind, reason=error.message))


def fetch_refused(refusal: m.FetchRefusal) -> pb.SenderMessage:
    return pb.SenderMessage(refused=pb.Refused(kind=_FETCH_REFUSALS[refusal]))


def _known_to_all(hit: m.HitBreakdown) -> m.HitBreakdown:
    """A receiver of before knows no ends of messages, and refuses what it does not know: they are
    reported as marks."""
    lost, in_pages = hit.lost, hit.in_pages
    if lost is not None and lost.eviction is not None:
        kind = _known_kind(lost.eviction.checkpoint_kind)
        lost = replace(lost, eviction=replace(lost.eviction, checkpoint_kind=kind))
    return replace(
        hit,
        checkpoint_source=_known_kind(hit.checkpoint_source),
        lost=lost,
        in_pages=None if in_pages is None else _known_to_all(in_pages),
    )


def _known_kind(kind: str | None) -> str | None:
    return CheckpointKind.MARK.value if kind == CheckpointKind.MESSAGE_END.value else kind


def ready(generation: int, token: m.PrefillToken, tail_seconds: float | None) -> pb.SenderMessage:
    return pb.SenderMessage(
        ready=pb.Ready(
            generation=generation,
            token=token.token,
            logprob=token.logprob,
            margin=token.margin,
            tail_seconds=tail_seconds,
            hit=hit_to_proto(_known_to_all(token.hit)),
            pulled=None if token.pulled is None else pulled_to_proto(token.pulled),
            route=None if token.route is None else route_to_proto(token.route),
            top=top_to_proto(token.top),
        )
    )


def load(reported: m.PrefillLoad, connection: str) -> pb.Load:
    """connection: to whom it is sent."""
    pull_fixed, pull_token = reported.pull or (None, None)
    return pb.Load(
        wait_seconds=reported.wait_seconds,
        fixed_seconds=reported.seconds.fixed,
        token_seconds=reported.seconds.token,
        context_seconds=reported.seconds.context,
        pull_fixed_seconds=pull_fixed,
        pull_token_seconds=pull_token,
        stored_seconds=reported.stored_seconds,
        others_wait_seconds=max(0.0, reported.wait_seconds - reported.waits.get(connection, 0.0)),
    )


def pull(grant: m.PullGrant) -> pb.SenderMessage:
    return pb.SenderMessage(
        pull=pb.Pull(
            generation=grant.generation,
            tokens=grant.tokens,
            first_page=grant.first_page,
            pages=grant.pages,
            slot=grant.slot,
        )
    )


def done(
    generation: int, report: SendReport, track: SenderTrack, pull: HandoverTimeline | None
) -> pb.SenderMessage:
    return pb.SenderMessage(
        done=pb.Done(
            generation=generation,
            windows=windows_to_wire(report.digests),
            report=report_to_wire(report, track),
            pull=None if pull is None else timeline_to_wire(pull),
        )
    )
