"""Conversions of hand-over messages to and from protobuf, for sender and receiver.

A receiver's request becomes an engine's messages, so InvalidReserve is raised before any engine
sees a bad request. A prefill node's reports are kept, counted and shown. Their values must lie
within this version's bounds: their readers raise PeerInvalid. Both errors name the field. Bytes and
digests are checked elsewhere. Pure.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import MAX_TOP_LOGPROBS, SamplingParams, TopLogprobs
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.keys import Keys
from tasuki.pycache.weights_namespace import names_weights
from tasuki.transfer import peer_values
from tasuki.transfer.errors import PeerInvalid
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.protocol.messages import (
    SENDER_TRACK,
    TIMELINE,
    chunks_from_wire,
    chunks_to_wire,
    drain_from_wire,
    drain_to_wire,
    report_to_wire,
)
from tasuki.transfer.reports import Drain, HandoverTimeline, ReceiverTrack, SenderTrack, SendReport
from tasuki.transfer.wire import Codec, Wire, numbered, numbers_of, rows

from .proto import (
    HIT,
    PEERS_HIT,
    PEERS_PULLED,
    PEERS_ROUTE,
    PEERS_TRANSFER,
    PULLED,
    ROUTE,
    SAMPLING,
    sampling_from_proto,
)

_TOKEN = np.dtype("<i4")
_HIGHEST_INT32 = 2**31 - 1
_MOST_STOP_TOKENS = 1 << 12
_LONGEST_SALT = 1 << 12
_LONGEST_CALLER = 1 << 12


class InvalidReserve(ValueError):
    """A malformed Reserve or Fetch: no receiver of this version sends it. The error names the
    field."""


def _tokens_to_wire(tokens: Keys) -> bytes:
    return tokens.astype("<i4", copy=False).tobytes()


def _tokens(sent: bytes, field: str) -> Keys:
    if not sent:
        raise InvalidReserve(f"{field} is empty: give at least one token")
    if len(sent) % _TOKEN.itemsize:
        raise InvalidReserve(f"{field} has {len(sent)} bytes, four make a token")
    return Keys(np.frombuffer(sent, dtype=_TOKEN).astype(np.int32))


def _salt(sent: bytes, field: str) -> bytes:
    if len(sent) > _LONGEST_SALT:
        raise InvalidReserve(f"{field} has {len(sent)} bytes, at most {_LONGEST_SALT}")
    if names_weights(sent):
        raise InvalidReserve(f"{field} names weights, as only a node's own tree does")
    return sent


def _caller(sent: str, field: str) -> str:
    if len(sent) > _LONGEST_CALLER:
        raise InvalidReserve(f"{field} has {len(sent)} characters, at most {_LONGEST_CALLER}")
    return sent


def _due_seconds(sent: float, field: str) -> float:
    # NaN is in no range.
    if not 0 < sent <= peer_values.LONGEST_SECONDS:
        raise InvalidReserve(f"{field} is {sent}: no time of a day")
    return sent


def _sampling(sent: pb.Sampling, field: str) -> SamplingParams:
    """Read and return sampling parameters. Check fields of unbounded length before copying them.
    Raise InvalidReserve naming `field`."""
    if sent.top_k > _HIGHEST_INT32:
        raise InvalidReserve(f"{field}: top_k {sent.top_k} is not less than 2^31")
    if not sent.temperature <= _HIGHEST_INT32:
        raise InvalidReserve(f"{field}: temperature is {sent.temperature}")
    stops = len(sent.stop_token_ids)
    if stops > _MOST_STOP_TOKENS:
        raise InvalidReserve(f"{field}: {stops} stop_token_ids, at most {_MOST_STOP_TOKENS}")
    try:
        return sampling_from_proto(sent)
    except ValueError as error:
        raise InvalidReserve(f"{field}: {error}") from error


_TRANSFER_REQUEST = Wire(
    m.TransferRequest,
    pb.Ticket,
    transfer_id=Codec(name="room"),
    sampling=Codec(write=SAMPLING.to_wire),
    due_seconds=Codec(write=partial(min, peer_values.LONGEST_SECONDS)),
).bounded("ticket", salt=_salt, caller=_caller, sampling=_sampling, due_seconds=_due_seconds)


def reserve(wanted: m.HandoverWanted, traceparent: str) -> pb.ReceiverMessage:
    """Build a Reserve, the request for a hand-over. traceparent: the request's trace context; empty
    if the request is not traced."""
    return pb.ReceiverMessage(
        reserve=pb.Reserve(
            ticket=_TRANSFER_REQUEST.to_wire(wanted.transfer_request),
            prompt=_tokens_to_wire(wanted.prompt),
            by_gateway=wanted.sender is not None,
            request_id=wanted.request_id,
            traceparent=traceparent,
        )
    )


def reserve_from_wire(reserve: pb.Reserve, connection: str) -> m.PrefillReserve:
    """Read a Reserve, the request for a hand-over. connection: name of the transfer's owner. Raises
    InvalidReserve naming the field."""
    transfer_request = reserve.ticket
    _require_named(transfer_request.room, transfer_request.generation)
    prompt = _tokens(reserve.prompt, "prompt")
    _require_inside(transfer_request, len(prompt))
    return m.PrefillReserve(_TRANSFER_REQUEST.from_wire(transfer_request), prompt, connection)


def trail_from_wire(reserve: pb.Reserve) -> tuple[str, str]:
    """Return the request id and the traceparent of a Reserve; empty if none was sent."""
    return peer_values.shown(reserve.request_id), peer_values.shown(reserve.traceparent)


def _require_named(transfer_id: int, generation: int) -> None:
    if not 0 < transfer_id < 2**63:
        raise InvalidReserve(f"ticket.room {transfer_id} is not in [1, 2^63)")
    if not 0 <= generation < 2**63:
        raise InvalidReserve(f"ticket.generation {generation} is not in [0, 2^63)")


def _require_inside(transfer_request: pb.Ticket, tokens: int) -> None:
    """Raise InvalidReserve if a field of the transfer request points outside the prompt. tokens:
    length of the prompt."""
    if transfer_request.offered >= tokens:
        raise InvalidReserve(
            f"ticket.offered {transfer_request.offered} is not less than the prompt's {tokens}"
        )
    # There is at most one mark per token.
    if len(transfer_request.marks) > tokens:
        raise InvalidReserve(f"ticket.marks has {len(transfer_request.marks)} of {tokens} tokens")
    if transfer_request.HasField("message_end") and not 0 < transfer_request.message_end < tokens:
        raise InvalidReserve(
            f"ticket.message_end {transfer_request.message_end} is not inside the prompt's "
            f"{tokens} tokens"
        )


def fetch(wanted: m.FetchWanted) -> pb.ReceiverMessage:
    asked, tokens = wanted.transfer_request, _tokens_to_wire(wanted.prompt)
    found = pb.Fetch(generation=asked.generation, tokens=tokens, salt=asked.salt)
    return pb.ReceiverMessage(fetch=found)


def fetch_from_wire(transfer_id: int, fetch: pb.Fetch, connection: str) -> m.FetchReserve:
    """Read a Fetch, the request for a stored state. connection: name of the transfer's owner.
    Raises InvalidReserve naming the field."""
    _require_named(transfer_id, fetch.generation)
    prompt = _tokens(fetch.tokens, "tokens")
    transfer_request = m.FetchRequest(
        m.TransferId(transfer_id), fetch.generation, _salt(fetch.salt, "salt")
    )
    return m.FetchReserve(transfer_request, prompt, connection)


GRANT = Wire(m.Grant, pb.Grant, apart=["transfer_id"])
PULL = Wire(m.PullGrant, pb.Pull, apart=["transfer_id"])


def pull_done(generation: int, report: SendReport, track: SenderTrack) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(
        pull_done=pb.PullDone(
            generation=generation,
            windows=chunks_to_wire(report.digests),
            report=report_to_wire(report, track),
        )
    )


def pull_failed(generation: int, reason: str, drain: Drain) -> pb.ReceiverMessage:
    return pb.ReceiverMessage(
        pull_failed=pb.PullFailed(generation=generation, reason=reason, drain=drain_to_wire(drain))
    )


_ERROR_KINDS = numbers_of(m.ErrorKind, pb.ErrorKind)
_FETCH_REFUSALS = numbers_of(m.FetchRefusal, pb.ErrorKind)


def refused(error: m.RequestError) -> pb.SenderMessage:
    kind = _ERROR_KINDS.get(error.kind, pb.ERROR_KIND_INTERNAL)
    return pb.SenderMessage(refused=pb.Refused(kind=kind, reason=error.message))


def fetch_refused(refusal: m.FetchRefusal) -> pb.SenderMessage:
    return pb.SenderMessage(refused=pb.Refused(kind=_FETCH_REFUSALS[refusal]))


def refused_from_wire(transfer_id: m.TransferId, refused: pb.Refused) -> m.HandoverFailed:
    waited = refused.kind == pb.ERROR_KIND_QUEUE_TIMEOUT
    cause = m.LossCause.QUEUE_TIMEOUT if waited else m.LossCause.REFUSED
    return m.HandoverFailed(
        transfer_id, f"refused: {peer_values.text(refused.reason)}", cause=cause
    )


_TOP = rows(pb.TokenLogprob, "token", "logprob")


def _top(top: TopLogprobs, field: str) -> TopLogprobs:
    """Check a token's likeliest alternatives and return them. Raises PeerInvalid. Any int32 token
    id is allowed, because the ids are only shown to clients and never looked up."""
    if len(top) > MAX_TOP_LOGPROBS:
        raise PeerInvalid(f"{field} has {len(top)} tokens, at most {MAX_TOP_LOGPROBS}")
    for token, logprob in top:
        peer_values.count(token, f"{field}.token", _HIGHEST_INT32)
        peer_values.finite(logprob, f"{field}.logprob")
    return top


def _tail(seconds: float, field: str) -> float | None:
    """Return a sender's estimate of its remaining transfer seconds. Return None if it is out of
    range, because a missing estimate does no more harm than a wrong one."""
    return seconds if 0 <= seconds <= peer_values.LONGEST_SECONDS else None


def _known_to_all(hit: m.HitBreakdown) -> m.HitBreakdown:
    """Return the hit with checkpoint kind `mark` in place of `message_end`, because older receivers
    refuse unknown kinds."""
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


_READY = Wire(
    m.PrefillToken,
    pb.Ready,
    apart=["transfer_id", "generation", "tail_seconds"],
    hit=Codec(write=lambda hit: HIT.to_wire(_known_to_all(hit))),
    pulled=PULLED,
    route=ROUTE,
    top=_TOP,
)
_REMOTE_READY = Wire(
    m.RemoteReady,
    pb.Ready,
    apart=["transfer_id", "prefilled_on", "prefill_choice", "generation"],
    hit=PEERS_HIT,
    pulled=PEERS_PULLED,
    route=PEERS_ROUTE,
    top=_TOP,
).bounded("ready", tail_seconds=_tail, top=_top)


def ready(generation: int, token: m.PrefillToken, tail_seconds: float | None) -> pb.SenderMessage:
    return pb.SenderMessage(
        ready=_READY.to_wire(token, generation=generation, tail_seconds=tail_seconds)
    )


def ready_from_wire(transfer_id: m.TransferId, ready: pb.Ready, prefilled_on: str) -> m.RemoteReady:
    """Read a Ready, the message with the first token. Raises PeerInvalid, like every function named
    *from_wire. The decode engine checks the token, because it knows the vocabulary."""
    return _REMOTE_READY.from_wire(ready, transfer_id=transfer_id, prefilled_on=prefilled_on)


def done(
    generation: int, report: SendReport, track: SenderTrack, pull: HandoverTimeline | None
) -> pb.SenderMessage:
    return pb.SenderMessage(
        done=pb.Done(
            generation=generation,
            windows=chunks_to_wire(report.digests),
            report=report_to_wire(report, track),
            pull=None if pull is None else TIMELINE.to_wire(pull),
        )
    )


def done_from_wire(
    transfer_id: m.TransferId, done: pb.Done, received: ReceiverTrack
) -> m.RemoteDone:
    pull = TIMELINE.from_wire(done.pull) if done.HasField("pull") else None
    timeline = HandoverTimeline(SENDER_TRACK.from_wire(done.report.track), received)
    return m.RemoteDone(transfer_id, PEERS_TRANSFER.from_wire(done.report, timeline=timeline), pull)


def read_message(
    transfer_id: m.TransferId, message: pb.SenderMessage, prefilled_on: str
) -> say.Message:
    """Return the prefill node's message about the transfer, checked against bounds. An invalid
    message becomes a Contradiction. prefilled_on: the prefill node's name."""
    try:
        return _read_message(transfer_id, message, prefilled_on)
    except PeerInvalid as error:
        return say.Contradiction(str(error))


def _read_message(
    transfer_id: m.TransferId, message: pb.SenderMessage, prefilled_on: str
) -> say.Message:
    """Read a prefill node's message about the transfer. Raises PeerInvalid naming the field."""
    match message.WhichOneof("message"):
        case "queued":
            queued, wait = message.queued, None
            if queued.HasField("wait_seconds"):
                wait = peer_values.seconds(queued.wait_seconds, "queued.wait_seconds")
            return say.Queued(queued.position, wait)
        case "accepted":
            return say.Accepted()
        case "refused":
            return say.Refused(refused_from_wire(transfer_id, message.refused))
        case "ready":
            remote = ready_from_wire(transfer_id, message.ready, prefilled_on)
            return say.Ready(message.ready.generation, remote)
        case "held":
            return say.Held(message.held.generation)
        case "done":
            done = message.done
            return say.Done(done.generation, chunks_from_wire(done.windows), done)
        case "failed":
            failed = message.failed
            return say.Ended(drain_from_wire(failed.drain), failed.reason)
        case "aborted":
            return say.Ended(drain_from_wire(message.aborted.drain))
        case "pull":
            return say.PullAsked(PULL.from_wire(message.pull, transfer_id=transfer_id))
        case "stop_pull":
            return say.StopPull()
    return say.Unknown()


def load(reported: m.PrefillLoad, connection: str) -> pb.Load:
    """Build a Load, a prefill node's report of its work, for one decode node. connection: name of
    this decode node; its own transfers do not count in others_wait_seconds."""
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


def _left_tokens(sent: bytes, field: str) -> Keys:
    if not sent or len(sent) % _TOKEN.itemsize:
        raise PeerInvalid(f"{field} has {len(sent)} bytes, four make a token")
    return Keys(np.frombuffer(sent, dtype=_TOKEN).astype(np.int32))


def _left_salt(sent: bytes, field: str) -> bytes:
    peer_values.count(len(sent), f"bytes of {field}", _LONGEST_SALT)
    if names_weights(sent):
        raise PeerInvalid(f"{field} names weights, as only a node's own tree does")
    return sent


_GIVEN_STATE = Wire(
    m.GivenState, pb.LeftState, prompt=Codec(write=_tokens_to_wire, name="tokens")
).bounded("state", prompt=_left_tokens, salt=_left_salt)
TAKEN_OVER = Wire(
    m.LeftTakenOver,
    pb.TakenOver,
    outcome=numbered(m.DrainTargetOutcome, pb.HeirOutcome, otherwise=m.DrainTargetOutcome.LOST),
).bounded("done")


def left_state(left: m.LeftState) -> pb.TakeOverResponse:
    state = None if left.state is None else _GIVEN_STATE.to_wire(left.state)
    return pb.TakeOverResponse(state=state, over=left.over)


def left_state_from_wire(answer: pb.TakeOverResponse) -> m.GivenState | None:
    """Return the state given by a TakeOverResponse; None if it gives none. Raises PeerInvalid."""
    return _GIVEN_STATE.from_wire(answer.state) if answer.HasField("state") else None


def taken_over(number: int, passed: m.StatePassedOn) -> pb.TakenOver:
    """Build a TakenOver, the outcome of a state given by an ending prefill node. number: the
    state's number at this prefill node."""
    return TAKEN_OVER.to_wire(m.LeftTakenOver(number, passed.outcome, passed.bytes, passed.heir))
