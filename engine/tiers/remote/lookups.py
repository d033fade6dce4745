"""What a remote store has of prompts that are about to begin, asked beside the engine's loop.

Owns threads that ask; the tree is given what they find, on the engine's loop. Thread rule: begin(),
advance(), wait() and close() are the engine loop's.
Invariants:
1. A lookup is over within LOOKUP_SECONDS, whatever the store does: nobody waits longer. What comes
   later is of use to the next prompt. After three that were late in a row nobody waits for a while.
2. The tree is given a state whose manifest is whole, of the same salt, and behind the very tokens
   that the prompt begins with. What its objects bring is digested when it is loaded.
3. Nothing is given that was written before a flush of any node, once the store has noted that, nor
   that was asked for before one of this node.
"""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue

import numpy as np

from tasuki.engine.tiers.digests import TierDigests
from tasuki.engine.tiers.store.patience import Patience
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.utils.os_threads import name_this_thread

from .bucket import Bucket
from .manifest import MOST_BYTES, Keys, Manifest, Tokens, decoded
from .remote_failed import RemoteFailed
from .remote_objects import RemoteObjects

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 0.5
_PAUSE_SECONDS = 30.0
LEAST_GAIN = 256
"""Tokens that a state must spare, beyond what stands here, to be asked for."""
_THREADS = 4
_MOST_WAITING = 64
"""That no thread has begun: a store that is so slow is of no use to more."""
_KINDS = {kind.value: kind for kind in CheckpointKind}


@dataclass(eq=False)
class Lookup:
    """Of a prompt. beyond: tokens of it that stand here. due: on the engine's clock. flushes: of
    this node before it."""

    salt: bytes
    tokens: Tokens
    beyond: int
    due: float
    flushes: int = 0
    is_over: bool = False


NO_LOOKUP = Lookup(b"", np.empty(0, np.int32), 0, 0.0, is_over=True)


class Lookups:
    def __init__(
        self,
        bucket: Bucket,
        objects: RemoteObjects,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._bucket = bucket
        self._objects = objects
        self._clock = clock
        self._patience = Patience(_PAUSE_SECONDS, clock)
        self._asked: SimpleQueue[Lookup | None] = SimpleQueue()
        self._found: deque[tuple[Lookup, Manifest | None]] = deque()
        self._any_found = threading.Event()
        self._waiting: list[Lookup] = []
        self._threads: list[threading.Thread] = []
        self.counters = dict.fromkeys(("asked", "late"), 0)

    def begin(self, salt: bytes, tokens: Tokens, beyond: int) -> Lookup:
        """Over at once where it is not worth it, or the store is not to be asked now."""
        if len(tokens) - 1 - beyond < LEAST_GAIN or not self._objects.is_usable:
            return NO_LOOKUP
        if self._bucket.is_paused or self._patience.is_over:
            return NO_LOOKUP
        if self._asked.qsize() >= _MOST_WAITING:
            return NO_LOOKUP
        due = self._clock() + LOOKUP_SECONDS
        lookup = Lookup(salt, tokens, beyond, due, self._objects.flushes)
        self._start()
        self._waiting.append(lookup)
        self._asked.put(lookup)
        self.counters["asked"] += 1
        return lookup

    @property
    def is_busy(self) -> bool:
        """Whether somebody waits for one."""
        return bool(self._waiting)

    def advance(self, adopt: Callable[[Manifest], None]) -> None:
        """End what was found, or is late. adopt: gives the tree a state."""
        self._any_found.clear()
        while self._found:
            lookup, manifest = self._found.popleft()
            if manifest is not None and lookup.flushes == self._objects.flushes:
                adopt(manifest)
            if not lookup.is_over:
                self._patience.worked()
            self._end(lookup)
        now = self._clock()
        for lookup in [each for each in self._waiting if each.due < now]:
            self.counters["late"] += 1
            self._patience.failed()
            self._end(lookup)

    def _end(self, lookup: Lookup) -> None:
        if not lookup.is_over:
            lookup.is_over = True
            self._waiting.remove(lookup)

    def wait(self, seconds: float) -> None:
        """Until one is answered, at most so long."""
        self._any_found.wait(seconds)

    def close(self) -> None:
        """Idempotent. What still asks ends by the client's own bounds, and is of no use."""
        for _ in self._threads:
            self._asked.put(None)
        self._threads.clear()

    def _start(self) -> None:
        while len(self._threads) < _THREADS:
            name = f"tasuki-remote-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def _work(self) -> None:
        name_this_thread()
        while (lookup := self._asked.get()) is not None:
            try:
                # Those that are late already keep none that is not from the store.
                found = None if lookup.is_over else self._look_up(lookup)
            except Exception as error:
                # Whatever a store says, the thread goes on: without it each lookup were late.
                if not isinstance(error, RemoteFailed):
                    log.exception("a lookup broke")
                self._objects.failed(error)
                found = None
            self._found.append((lookup, found))
            self._any_found.set()

    def _look_up(self, lookup: Lookup) -> Manifest | None:
        keys = Keys(lookup.salt, lookup.tokens)
        for folder in keys.folders():
            listed = self._bucket.names(f"{folder}/")
            if keys.matching([each.name for each in listed], lookup.beyond) is None:
                continue
            emptied = self._objects.emptied_at()
            names = [each.name for each in listed if emptied is None or each.modified > emptied]
            best = keys.matching(names, lookup.beyond)
            if best is None:
                continue
            manifest = decoded(self._bucket.get(best, MOST_BYTES))
            if manifest is not None and _fits(manifest, lookup):
                return manifest
            self._objects.counters["torn"] += 1
        return None


def _fits(manifest: Manifest, lookup: Lookup) -> bool:
    prompt = manifest.prompt
    return (
        manifest.salt == lookup.salt
        and manifest.kind in _KINDS
        and lookup.beyond < len(prompt) < len(lookup.tokens)
        and bool((prompt == lookup.tokens[: len(prompt)]).all())
    )


def adopt(
    cache: HybridPrefixCache,
    tier: int,
    objects: RemoteObjects,
    manifest: Manifest,
    written: TierDigests,
) -> None:
    """Give the tree the state, in the tier of that number, if there is room and it stands nowhere.
    written: of the tier; gets what its objects must be."""
    found = cache.adopt(tier, manifest.prompt, salt=manifest.salt, kind=_KINDS[manifest.kind])
    if found is None:
        return
    pages, first, slot = found
    objects.adopted(manifest, pages, first, slot)
    written.pages.update(zip(pages[first:], manifest.page_digests[first:], strict=True))
    written.slots[slot] = int.from_bytes(manifest.slot_digest, "big")
