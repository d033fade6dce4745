"""Engine messages of a hand-over to and from protobuf, as the decode node needs them."""

from ..engine import messages as m
from ..proto import handover_pb2 as pb
from ..transfer.timeline import HandoverTimeline, ReceiverTrack
from ..transfer.timeline_wire import sender_track_from_wire


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
        tail_seconds=ready.tail_seconds if ready.HasField("tail_seconds") else None,
    )


def report_from_wire(report: pb.Report, received: ReceiverTrack) -> m.TransferReport:
    return m.TransferReport(
        bytes=report.bytes,
        windows=report.windows,
        pages=report.pages,
        hidden_seconds=report.hidden_seconds,
        exposed_seconds=report.exposed_seconds,
        timeline=HandoverTimeline(sender_track_from_wire(report.track), received),
    )
