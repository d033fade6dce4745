"""Conversions of a prompt's pictures to and from protobuf, for sender and receiver.

A peer's values are bounded before an engine sees them. Errors name the field. Pure.
"""

from collections.abc import Iterable, Sequence

from tasuki.engine import messages as m
from tasuki.model.vision.prompt_positions import PictureKind
from tasuki.proto import handover_pb2 as pb
from tasuki.pycache.keys import DIGEST_BYTES, PictureDigest
from tasuki.transfer.errors import PeerInvalid

from .pictures import MOST_PICTURES
from .transfer_proto import InvalidReserve

_SHA256_BYTES = 32
_LONGEST_RULE = 32
_MOST_FILES = 2
_KINDS = {PictureKind.IMAGE: pb.PICTURE_KIND_IMAGE, PictureKind.VIDEO: pb.PICTURE_KIND_VIDEO}
_KINDS_READ = {number: kind for kind, number in _KINDS.items()}


def runs_to_wire(pictures: Sequence[m.PromptPicture]) -> Iterable[pb.PictureRun]:
    """Yield the runs of pictures in a Reserve. REQUIRES: each has its file and its source."""
    for one in pictures:
        assert one.source is not None
        pairs = zip(one.files, one.source.media, strict=False)
        yield pb.PictureRun(
            start=one.start,
            rows=one.rows,
            columns=one.columns,
            kind=_KINDS[PictureKind(one.source.kind)],
            orientation=one.source.orientation,
            digest=one.digest,
            files=[
                pb.PictureFile(sha256=sha256, height=file.height, width=file.width)
                for file, sha256 in pairs
            ],
        )


def runs_from_wire(runs: Sequence[pb.PictureRun]) -> tuple[m.HandedPicture, ...]:
    """Return the pictures of a Reserve. Raises InvalidReserve naming the field."""
    if len(runs) > MOST_PICTURES:
        raise InvalidReserve(f"pictures has {len(runs)} runs, at most {MOST_PICTURES}")
    return tuple(_run_from_wire(run, f"pictures[{index}]") for index, run in enumerate(runs))


def _run_from_wire(run: pb.PictureRun, field: str) -> m.HandedPicture:
    kind = _KINDS_READ.get(run.kind)
    if kind is None:
        raise InvalidReserve(f"{field}.kind {run.kind} is unknown here")
    if len(run.digest) != DIGEST_BYTES:
        raise InvalidReserve(f"{field}.digest has {len(run.digest)} bytes, not {DIGEST_BYTES}")
    if len(run.orientation) > _LONGEST_RULE:
        raise InvalidReserve(f"{field}.orientation has more than {_LONGEST_RULE} characters")
    if not 1 <= len(run.files) <= _MOST_FILES:
        raise InvalidReserve(f"{field}.files has {len(run.files)} files, one or two are taken")
    if any(len(file.sha256) != _SHA256_BYTES for file in run.files):
        raise InvalidReserve(f"{field}.files: a sha256 has not {_SHA256_BYTES} bytes")
    return m.HandedPicture(
        *(run.start, run.rows, run.columns),
        kind=kind.value,
        orientation=run.orientation,
        digest=PictureDigest(run.digest),
        files=tuple(m.FileIdentity(file.sha256, file.height, file.width) for file in run.files),
    )


def wanted_from_wire(wanted: pb.PicturesWanted, generation: int, count: int) -> tuple[int, ...]:
    """Return the indices of a PicturesWanted. generation: the transfer's. count: number of the
    prompt's pictures. Raises PeerInvalid."""
    if wanted.generation != generation:
        raise PeerInvalid(f"pictures wanted of generation {wanted.generation}, not {generation}")
    indices = tuple(wanted.pictures[: count + 1])
    # Each picture is asked for once in a call, so a peer cannot make one file fill many calls.
    if not indices or len(set(indices)) != len(wanted.pictures) or max(indices) >= count:
        raise PeerInvalid(f"pictures wanted are {list(indices)[:8]}.. of the prompt's {count}")
    return indices
