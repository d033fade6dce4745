"""Encodes of pictures, a few blocks between two steps, and the rows that prompts wait for.

A picture goes through the tower alone, so its rows are a function of the picture. A part of an
encode is some blocks of the tower, never some rows. Encodes run one after the other, in the order
of the first wish. A prompt's pictures are wished for in order: the next one whose rows are missing,
while the chunks before it run.

Each prompt pins the rows of its pictures, up to the first missing one, until it has passed them. So
a prompt with pins can always go on, and one with a wish waits for prompts that can. Rows are
reserved whole when an encode begins.

Files of the first wishes are decoded beside the encodes. A wish without patches is passed over
until they are there.

Owns wishes, pins and the encode in progress; shares the store with the runner. Thread rule: the
engine loop's. Invariant: a request that is over, or retracted, has neither pin nor wish.
"""

import logging
import math
import time
from collections import Counter
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from tasuki.engine import messages as m
from tasuki.engine.pictures.file_levels import FileLevels, Levels, unreadable
from tasuki.engine.pictures.placed import PictureShape, PlacedPicture
from tasuki.engine.pictures.row_store import PictureName, PictureNumber, RowStore
from tasuki.engine.request import Prefilling, Request
from tasuki.model.vision.pixels import PicturePatches
from tasuki.model.vision.tower import Encode, VisionTower
from tasuki.utils.signatures import Clock

log = logging.getLogger(__name__)

_BESIDE_ANSWERS = 0.01
"""Seconds of blocks between two steps while answers run."""
_DECODED_AHEAD = 8
"""Largest number of wishes with pixels of their own in memory."""
_AHEAD_OF_A_CALLER = 4
"""The same of one caller: slow files of one do not hold back others'."""
_ALONE = 0.1
"""Seconds of blocks at a time without answers. A message waits as long."""


@dataclass
class PictureCounts:
    """Counters. encoded: pictures through the tower. kept: rows found in the store, once a prompt.
    dropped: encodes given up because no request waits any more. decoded: files whose decoding
    began."""

    encoded: int = 0
    decoded: int = 0
    kept: int = 0
    dropped: int = 0


@dataclass
class _MissingPicture:
    """A picture whose rows are missing. waiting: requests, each with the index of its picture."""

    picture: PlacedPicture
    waiting: dict[Request, int] = field(default_factory=dict)
    decoding: "Future[Levels] | None" = None

    @property
    def is_ready(self) -> bool:
        """True if its patches are there, or will never be."""
        if self.picture.levels is not None:
            return True
        return self.decoding is not None and self.decoding.done()

    def levels(self) -> Levels:
        """Return its patches. Raises the decoder's errors. REQUIRES: it is ready."""
        if self.picture.levels is not None:
            return self.picture.levels
        assert self.decoding is not None
        return self.decoding.result(0.0)


@dataclass
class _Running:
    """The picture whose rows are reserved. encode: None before its first block."""

    name: PictureName
    encode: Encode | None = None


class _Unreadable(Exception):
    """A picture's file gives no patches."""

    def __init__(self, error: m.RequestError) -> None:
        super().__init__(error.message)
        self.error = error


@dataclass(frozen=True)
class FailedPicture:
    """A request that ends because a picture of it cannot be encoded."""

    request: Request
    error: m.RequestError


class PictureEncoder:
    def __init__(
        self,
        tower: VisionTower,
        store: RowStore,
        clock: Clock = time.perf_counter,
        files: FileLevels | None = None,
    ) -> None:
        """files: reads pictures' files; None: one with default decoders."""
        self._tower = tower
        self._files = FileLevels(tower.rules) if files is None else files
        self._store = store
        self._clock = clock
        self._held: dict[Request, dict[int, PictureNumber]] = {}
        """Pins by request and index of its picture."""
        self._wishes: dict[PictureName, _MissingPicture] = {}
        self._running: _Running | None = None
        self._block_seconds = 0.0
        self.counts = PictureCounts()

    @property
    def shape(self) -> PictureShape:
        """Return the sizes of the pictures accepted here."""
        config = self._tower.config
        return PictureShape(
            config.tokens, config.merge, config.patch_values, self._store.most_tokens
        )

    @property
    def store(self) -> RowStore:
        return self._store

    @property
    def is_busy(self) -> bool:
        """Return True if blocks are left to run for some request, except those of pictures being
        decoded."""
        return any(wish.is_ready for wish in self._wishes.values())

    @property
    def is_decoding(self) -> bool:
        """Return True if a picture's file is being decoded for some request."""
        return not all(wish.is_ready for wish in self._wishes.values())

    def close(self) -> None:
        """End the decoders' processes."""
        self._files.close()

    def ready_until(self, request: Request, start: int) -> int:
        """Return the end of the tokens from `start` on with stored rows. It is the request's
        length, or the start of the first picture without rows. Pin the pictures before it, and wish
        for it. REQUIRES: the request is Active and has pictures."""
        pictures = request.pictures
        assert pictures is not None
        held = self._held.setdefault(request, {})
        for index in range(pictures.first_behind(start), len(pictures.runs)):
            run, picture = pictures.runs[index], pictures.pictures[index]
            if run.start >= request.length:
                break
            if index in held:
                continue
            name = (request.salt, picture.digest)
            number = self._store.pin(name)
            if number is None:
                self._wishes.setdefault(name, _MissingPicture(picture)).waiting[request] = index
                return max(start, run.start)
            self.counts.kept += 1
            held[index] = number
        return request.length

    def number_of(self, request: Request, index: int) -> PictureNumber:
        """Return the number of the stored rows of the request's picture `index`. REQUIRES:
        ready_until() was behind it."""
        return self._held[request][index]

    def release(self, request: Request) -> None:
        """Drop a request's pins, and the wishes no other request waits for. Idempotent."""
        for number in self._held.pop(request, {}).values():
            self._store.unpin(number)
        for name in [name for name, wish in self._wishes.items() if request in wish.waiting]:
            wish = self._wishes[name]
            del wish.waiting[request]
            if not wish.waiting:
                self._forget(name)
                self.counts.dropped += 1

    def advance(self, *, beside_answers: bool) -> list[FailedPicture]:
        """Run blocks of encodes for a while, at least one if there is any. Return the requests with
        a failed picture. beside_answers: True for a shorter while, because answers run."""
        if not self._held:
            return []
        self._unpin_passed()
        self._decode_ahead()
        limit = _BESIDE_ANSWERS if beside_answers else _ALONE
        began = self._clock()
        while self._begin_next():
            running = self._running
            assert running is not None
            try:
                failure = self._run_block(running)
            except _Unreadable as error:
                failure = error.error
            except Exception as error:
                log.exception("a picture's encode failed")
                reason = f"a picture's encode failed: {error}; send it again"
                failure = m.RequestError(m.ErrorKind.INTERNAL, reason)
            if failure is not None:
                return self._fail(running.name, failure)
            if self._clock() - began + self._block_seconds > limit:
                break
        return []

    def _begin_next(self) -> bool:
        """Return True if an encode is in progress, or begins now."""
        if self._running is not None:
            return True
        ready = ((name, wish) for name, wish in self._wishes.items() if wish.is_ready)
        name, wish = next(ready, (None, None))
        if name is None or wish is None:
            return False
        if not self._store.reserve(name, wish.picture.run.tokens):
            return False
        self._running = _Running(name)
        return True

    def _decode_ahead(self) -> None:
        """Begin to decode the files of the first wishes. Their pixels take memory."""
        ahead: Counter[str] = Counter()
        for wish in self._wishes.values():
            line = next(iter(wish.waiting)).caller
            if ahead[line] == _AHEAD_OF_A_CALLER:
                continue
            ahead[line] += 1
            if wish.picture.levels is None and wish.decoding is None:
                wish.decoding = self._files.begin(line, wish.picture)
                self.counts.decoded += wish.decoding is not None
            if ahead.total() == _DECODED_AHEAD:
                return

    def _run_block(self, running: _Running) -> m.RequestError | None:
        """Run one block; store the rows behind the last. Return a failure, if any."""
        began, encode = self._clock(), running.encode
        if encode is None:
            wish = self._wishes[running.name]
            try:
                levels = wish.levels()
            except Exception as error:
                raise _Unreadable(unreadable(wish.picture, error)) from error
            patches = PicturePatches(torch.from_numpy(levels), wish.picture.grid)
            encode = running.encode = self._tower.begin(patches)
        encode.run(1)
        self._block_seconds = self._clock() - began
        if encode.blocks_left:
            return None
        rows = encode.rows()
        if not math.isfinite(float(rows.abs().sum())):
            reason = "a picture's rows are NaN or infinite: check the checkpoint and its dtype"
            return m.RequestError(m.ErrorKind.INTERNAL, reason)
        self._store.put(running.name, rows)
        self._running = None
        self.counts.encoded += 1
        self._hand_out(running.name)
        return None

    def _hand_out(self, name: PictureName) -> None:
        """Pin new rows for all requests that wait for them. A later place of the same picture is
        not pinned: the prompt may wait for another picture before it."""
        for request, index in self._wishes.pop(name).waiting.items():
            number = self._store.pin(name)
            assert number is not None
            self._held[request][index] = number

    def _unpin_passed(self) -> None:
        """Unpin the rows of pictures with all tokens computed, and release requests not in
        Prefilling."""
        for request, held in [*self._held.items()]:
            state, pictures = request.state, request.pictures
            if not isinstance(state, Prefilling) or pictures is None:
                self.release(request)
                continue
            passed = pictures.first_behind(state.progress.num_computed)
            for index in [index for index in held if index < passed]:
                self._store.unpin(held.pop(index))

    def _fail(self, name: PictureName, error: m.RequestError) -> list[FailedPicture]:
        """Forget the picture. Return the requests that wait for it."""
        waiting = list(self._wishes[name].waiting)
        self._forget(name)
        return [FailedPicture(request, error) for request in waiting]

    def _forget(self, name: PictureName) -> None:
        wish = self._wishes.pop(name)
        if wish.decoding is not None:
            wish.decoding.cancel()
        if self._running is not None and self._running.name == name:
            self._running = None
            self._store.cancel(name)
