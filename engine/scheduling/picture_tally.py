"""Counters of an engine's pictures: outcomes, and seconds of stages.

PictureTally owns the counters and decides nothing. Thread rule: the engine loop's.
"""

import time
from collections import Counter
from collections.abc import Iterable

from tasuki.engine import messages as m
from tasuki.engine.accounting import TimeCounter
from tasuki.engine.messages import PictureOutcome, PictureStage
from tasuki.engine.pictures.file_levels import ReadPicture
from tasuki.engine.pictures.row_store import RowStore
from tasuki.engine.pictures.seen_picture import SeenPicture, StageSeconds
from tasuki.engine.request import Request

STAGE_BOUNDS = (0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30)
_COUNTED = (
    *(PictureOutcome.SKIPPED, PictureOutcome.KEPT, PictureOutcome.ENCODED),
    *(PictureOutcome.REFUSED, PictureOutcome.LOST),
)


class PictureTally:
    def __init__(self) -> None:
        self._outcomes = Counter(dict.fromkeys(_COUNTED, 0))
        self._stages = {stage: TimeCounter(STAGE_BOUNDS) for stage in PictureStage}

    def skipped(self, request: Request, first: int) -> None:
        """Record that a hit covers the request's pictures before index `first`. A picture counts
        once a request, with its first outcome."""
        for index in range(first):
            self._note(request, index, SeenPicture(PictureOutcome.SKIPPED))

    def kept(self, request: Request, index: int) -> None:
        self._note(request, index, SeenPicture(PictureOutcome.KEPT))

    def waited(self, request: Request, index: int, seconds: float) -> None:
        """Record that the picture's rows were made for another prompt while this one waited."""
        self._stages[PictureStage.WAIT].add(seconds)
        self._note(request, index, SeenPicture(PictureOutcome.KEPT, wait=seconds))

    def encoded(self, request: Request, index: int, stages: StageSeconds, wait: float) -> None:
        """Record that the picture was encoded for this request. Each encode counts, also a second
        one for a retracted request."""
        self._stages[PictureStage.TOWER].add(stages.tower)
        self._stages[PictureStage.WAIT].add(wait)
        self._outcomes[PictureOutcome.ENCODED] += 1
        age = time.monotonic() - request.created
        request.seen[index] = SeenPicture(PictureOutcome.ENCODED, stages, wait, age)

    def read(self, read: ReadPicture) -> None:
        """Record the stages of a picture read from its file."""
        self._stages[PictureStage.DECODE].add(read.decode_seconds)
        self._stages[PictureStage.RESIZE].add(read.resize_seconds)

    def failed(self, error: m.RequestError) -> None:
        """Record a picture that ends its requests with an error."""
        is_refused = error.kind is m.ErrorKind.INVALID
        self._outcomes[PictureOutcome.REFUSED if is_refused else PictureOutcome.LOST] += 1

    def stats(self, store: RowStore, media_bytes: int, decoders_lost: int) -> m.PictureStats:
        """Return the counters with the present use of memory. media_bytes: of the picture files of
        requests in flight. decoders_lost: processes that died."""
        return m.PictureStats(
            outcomes=dict(self._outcomes),
            seconds={stage: counter.spread() for stage, counter in self._stages.items()},
            row_bytes=store.use(),
            media_bytes=media_bytes,
            decoders_lost=decoders_lost,
        )

    def _note(self, request: Request, index: int, seen: SeenPicture) -> None:
        if index not in request.seen:
            self._outcomes[seen.outcome] += 1
            request.seen[index] = seen


def media_bytes(requests: Iterable[Request]) -> int:
    """Return the bytes of the picture files of requests, each counted once. Answers to one prompt
    share its pictures."""
    prompts = {id(one.pictures): one.pictures for one in requests if one.pictures is not None}
    files = {id(one.file): one.file for prompt in prompts.values() for one in prompt.pictures}
    return sum(file.size for file in files.values() if file is not None)
