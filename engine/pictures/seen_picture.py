"""The outcomes of one request's pictures, and the report made of them."""

from collections import Counter
from dataclasses import dataclass
from typing import TypeAlias

from tasuki.engine.messages import HitBreakdown, PictureOutcome, PicturesReport, PictureUse
from tasuki.engine.messages.pictures import MOST_USES
from tasuki.model.vision.prompt_positions import PictureKind

from .placed import PlacedPicture, PlacedPictures


@dataclass(frozen=True)
class StageSeconds:
    """Seconds of the stages of one picture's rows. decode_ago, tower_ago: from the begin of a stage
    to the end of all."""

    decode: float = 0.0
    resize: float = 0.0
    tower: float = 0.0
    decode_ago: float = 0.0
    tower_ago: float = 0.0


_NO_STAGES = StageSeconds()


@dataclass(frozen=True)
class SeenPicture:
    """One picture of a request. wait: seconds of its prompt for the rows. ready_at: end of its
    encode for this request, in seconds after the arrival."""

    outcome: PictureOutcome
    stages: StageSeconds = _NO_STAGES
    wait: float = 0.0
    ready_at: float = 0.0

    def begin(self, ago: float) -> float:
        """Return the begin of a stage in seconds after the request's arrival. It may have begun for
        an earlier request."""
        return max(0.0, self.ready_at - ago)


SeenPictures: TypeAlias = dict[int, SeenPicture]
"""By index of the picture among the prompt's."""


def pictures_report(
    pictures: PlacedPictures | None, seen: SeenPictures, hit: HitBreakdown | None, *, is_here: bool
) -> PicturesReport | None:
    """Return the report of a prompt's pictures; None without any. seen: those reached so far. hit:
    None if the prompt was never looked up. is_here: True if this engine computed the prompt."""
    if pictures is None:
        return None
    usable = 0 if hit is None else hit.usable_tokens
    tokens: Counter[PictureKind] = Counter()
    covered = 0
    for picture in pictures.pictures:
        tokens[picture.kind] += picture.run.tokens
        covered += min(picture.run.tokens, max(0, usable - picture.run.start))
    count = len(pictures.pictures)
    unseen = PictureOutcome.UNREACHED if is_here else PictureOutcome.ELSEWHERE
    each = []
    for index in range(max(0, count - MOST_USES), count):
        picture = pictures.pictures[index]
        missing = PictureOutcome.SKIPPED if picture.run.end <= usable else unseen
        each.append(_use(picture, seen.get(index, SeenPicture(missing))))
    images, videos = tokens[PictureKind.IMAGE], tokens[PictureKind.VIDEO]
    return PicturesReport(count, images, videos, covered, tuple(each))


def _use(picture: PlacedPicture, seen: SeenPicture) -> PictureUse:
    file, stages = picture.file, seen.stages
    return PictureUse(
        outcome=seen.outcome,
        kind=picture.kind.value,
        place="" if file is None else file.place,
        start=picture.run.start,
        tokens=picture.run.tokens,
        bytes=sum(each.size for each in picture.files),
        decode_seconds=stages.decode,
        resize_seconds=stages.resize,
        tower_seconds=stages.tower,
        wait_seconds=seen.wait,
        decode_at=seen.begin(stages.decode_ago) if stages.decode else 0.0,
        tower_at=seen.begin(stages.tower_ago) if stages.tower else 0.0,
        ready_at=seen.ready_at,
    )
