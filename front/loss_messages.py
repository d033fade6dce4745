"""What a cache gave up, as wire messages of the public API. Pure functions."""

from ..engine.losses import Eviction, LostState
from ..proto import inference_pb2 as pb


def lost_message(lost: LostState) -> pb.LostState:
    message = pb.LostState(tokens=lost.tokens, slabs_since=lost.slabs_since)
    if lost.eviction is not None:
        message.eviction.CopyFrom(eviction_message(lost.eviction))
    return message


def eviction_message(eviction: Eviction) -> pb.Eviction:
    return pb.Eviction(
        sequence=eviction.sequence,
        kind=eviction.kind,
        checkpoint_kind=eviction.checkpoint_kind,
        tokens=eviction.tokens,
        slabs=eviction.slabs,
        score=eviction.score,
        taken_by=eviction.taken_by,
    )


def read_lost(lost: pb.LostState) -> LostState:
    eviction = read_eviction(lost.eviction) if lost.HasField("eviction") else None
    return LostState(lost.tokens, lost.slabs_since, eviction)


def read_eviction(eviction: pb.Eviction) -> Eviction:
    return Eviction(
        eviction.sequence,
        eviction.kind,
        eviction.checkpoint_kind if eviction.HasField("checkpoint_kind") else None,
        eviction.tokens,
        eviction.slabs,
        eviction.score if eviction.HasField("score") else None,
        eviction.taken_by if eviction.HasField("taken_by") else None,
    )
