"""Digests windows that leave, beside their transfers: all that wait, in one call.

Owns a thread and what was asked of it. Knows no rooms and no links. Thread rule: start() and stop()
once each, ask() from one thread; `changed` is called on the digests' thread and must not wait.
Invariants: what was asked is answered, stop() included; a window that cannot be digested fails
alone.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue

from tasuki.transfer.windows.digest import Digester
from tasuki.utils.os_threads import name_this_thread

from .direct_source import LoadedWindow

_MOST_AT_ONCE = 64
"""Windows of a call: the first of them waits for the last."""


@dataclass(eq=False)
class AskedDigest:
    """A window's digest, now or later. digester: of the window's source."""

    digester: Digester
    loaded: LoadedWindow
    room: int
    generation: int
    answer: int | Exception | None = None

    @property
    def done(self) -> bool:
        return self.answer is not None

    def result(self) -> int:
        """Raises what digesting raised. REQUIRES: done."""
        assert self.answer is not None
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class DigestThread:
    def __init__(self, changed: Callable[[], None]) -> None:
        """changed: some of what was asked is answered."""
        self._changed = changed
        self._asked: SimpleQueue[Sequence[AskedDigest] | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._loop, name="tasuki-digests", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Blocks until all is answered. REQUIRES: start; nothing is asked after it."""
        self._asked.put(None)
        self._thread.join()

    def ask(self, asked: Sequence[AskedDigest]) -> None:
        """The windows' bytes stay as they are until they are done."""
        self._asked.put(asked)

    def _loop(self) -> None:
        name_this_thread()
        while (first := self._asked.get()) is not None:
            batch = [*first]
            over = False
            while not over and len(batch) < _MOST_AT_ONCE:
                try:
                    more = self._asked.get_nowait()
                except Empty:
                    break
                over = more is None
                if more is not None:
                    batch += more
            _answer_all(batch)
            self._changed()
            if over:
                return


def _answer_all(batch: Sequence[AskedDigest]) -> None:
    for digester in {id(asked.digester): asked.digester for asked in batch}.values():
        of_it = [asked for asked in batch if asked.digester is digester]
        try:
            found = digester.digest_each(
                [asked.loaded.digestible(asked.room, asked.generation) for asked in of_it]
            )
        except Exception:
            for asked in of_it:
                _answer(asked)
        else:
            for asked, digest in zip(of_it, found, strict=True):
                asked.answer = digest


def _answer(asked: AskedDigest) -> None:
    """By itself, so that what is wrong with it befalls no other."""
    try:
        loaded = asked.loaded.digestible(asked.room, asked.generation)
        (asked.answer,) = asked.digester.digest_each([loaded])
    except Exception as error:
        asked.answer = error
