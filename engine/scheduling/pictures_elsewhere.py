"""Pictures of an engine without a vision tower: their rows are computed by another node.

It stands in for PictureEncoder. A prompt that needs a row here ends with a typed error, because no
node is left to compute it. Owns the waiting requests. Thread rule: the engine loop's.
"""

from collections.abc import Iterable
from typing import TypeAlias

from tasuki.engine import messages as m
from tasuki.engine.pictures.placed import PictureShape, PlacedPicture, Sight
from tasuki.engine.pictures.row_store import PictureNumber
from tasuki.engine.request import Prefilling, Request

from .picture_encoder import FailedPicture, PictureEncoder, PictureWork, no_work
from .picture_tally import media_bytes

_NO_TOWER = m.RequestError(
    m.ErrorKind.NO_TOWER,
    "no prefill node computed the prompt's pictures, and this node has no vision tower: connect a "
    "prefill node of the same checkpoint with one, or serve this node with --vision auto",
)


class PicturesElsewhere:
    is_decoding = False

    def __init__(self, sight: Sight, work: PictureWork = no_work) -> None:
        """work: of a picture."""
        self._work = work
        rules = sight.rules
        self.shape = PictureShape.of(sight.config, rules, rules.most // rules.factor**2)
        self._waiting: dict[Request, None] = {}

    @property
    def is_busy(self) -> bool:
        """Return True if a request waits for its end."""
        return bool(self._waiting)

    def clear(self) -> None:
        """Do nothing: no rows are kept."""

    def close(self) -> None:
        """Do nothing: no process decodes."""

    def work(self, request: Request, start: int) -> float:
        """Return the work of the prompt's pictures from token `start` on, in tokens."""
        pictures = request.pictures
        wanted = () if pictures is None else self.missing(request, start)
        return 0.0 if pictures is None else sum(self._work(pictures.pictures[i]) for i in wanted)

    def work_of(self, picture: PlacedPicture) -> float:
        """Return the work of a picture without rows, in tokens of the language model."""
        return self._work(picture)

    def missing(self, request: Request, start: int) -> tuple[int, ...]:
        """Return the indices of the prompt's pictures with a token at `start` or later."""
        pictures = request.pictures
        assert pictures is not None
        indices = range(pictures.first_behind(start), len(pictures.runs))
        return tuple(index for index in indices if pictures.runs[index].start < request.length)

    def ready_until(self, request: Request, start: int) -> int:
        """Return the end of the tokens from `start` on that need no row. The request ends soon, if
        any does."""
        pictures, wanted = request.pictures, self.missing(request, start)
        assert pictures is not None
        if not wanted:
            return request.length
        self._waiting[request] = None
        return max(start, pictures.runs[wanted[0]].start)

    def number_of(self, request: Request, index: int) -> PictureNumber:
        """Raise: no row is here."""
        raise AssertionError(f"row of picture {index} of {request.id} in an engine without a tower")

    def release(self, request: Request) -> None:
        """Forget a request. Idempotent."""
        self._waiting.pop(request, None)

    def stats(self, requests: Iterable[Request]) -> m.PictureStats:
        """Return the counters of pictures. requests: all of the engine."""
        rows = dict.fromkeys(("pinned", "kept", "free"), 0)
        return m.PictureStats({}, {}, rows, media_bytes(requests), decoders_lost=0)

    def advance(
        self, step_seconds: float | None, *, in_flight: bool = False
    ) -> list[FailedPicture]:
        """Return the requests that need a row here: each ends with an error. step_seconds,
        in_flight: without effect."""
        waiting, self._waiting = self._waiting, {}
        return [
            FailedPicture(one, _NO_TOWER) for one in waiting if isinstance(one.state, Prefilling)
        ]


Pictures: TypeAlias = PictureEncoder | PicturesElsewhere
"""The pictures of an engine that takes prompts with them."""
