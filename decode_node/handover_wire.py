"""Engine messages of a hand-over to and from protobuf, as the decode node needs them."""

from ..engine import messages as m
from ..front.answer_stream import REQUEST_ID_KEY
from ..front.origin import TRACE_HEADER
from ..proto import handover_pb2 as pb


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
            ),
            prompt=wanted.prompt.tolist(),
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


def ready_from_wire(room: m.RoomId, ready: pb.Ready, prefilled_on: str) -> m.RemoteReady:
    hit = ready.hit
    return m.RemoteReady(
        room=room,
        token=ready.token,
        logprob=ready.logprob,
        margin=ready.margin,
        hit=m.HitBreakdown(
            prompt_tokens=hit.prompt_tokens,
            kv_tokens=hit.kv_tokens,
            usable_tokens=hit.usable_tokens,
            causes=dict(hit.causes),
            checkpoint_source=(
                hit.checkpoint_source if hit.HasField("checkpoint_source") else None
            ),
        ),
        prefilled_on=prefilled_on,
    )


def report_from_wire(report: pb.Report) -> m.TransferReport:
    return m.TransferReport(
        bytes=report.bytes,
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=report.hidden_seconds,
        exposed_seconds=report.exposed_seconds,
    )
