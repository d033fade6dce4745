"""The remote tier of one node: its size, the probe at the start, and lookups of prompts."""

import logging
import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.tiers.digests import TierDigests
from tasuki.engine.tiers.store import MakeContract, Patience, contract_digest, folder_of, within
from tasuki.pycache._cpp_cache import CheckpointKind
from tasuki.pycache.keys import Keys
from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tasuki.utils.signatures import Clock
from tasuki.utils.system import name_this_thread

from .bucket import Bucket, RemoteFailed, open_bucket, read_credentials
from .remote_objects import MOST_BYTES, Manifest, ObjectKeys, RemoteObjects, Tokens, decoded

log = logging.getLogger(__name__)

LOOKUP_SECONDS = 0.5
_PAUSE_SECONDS = 30.0
LEAST_GAIN = 256
"""Fewest tokens a remote state must save, beyond those stored on this node, for a lookup."""
_THREADS = 4
_MOST_WAITING = 64
"""Most lookups waiting for a thread. If the store is this slow, more lookups are useless."""
_KINDS = {kind.value: kind for kind in CheckpointKind}


@dataclass(eq=False)
class Lookup:
    """The lookup of a prompt in a remote store. beyond: number of the prompt's first tokens stored
    on this node. due: end of the request's wait, on the engine's clock. flushes: number of this
    node's flushes before it. is_over: True if no request waits for it."""

    salt: bytes
    tokens: Tokens
    beyond: int
    due: float
    flushes: int = 0
    is_over: bool = False


NO_LOOKUP = Lookup(b"", np.empty(0, np.int32), 0, 0.0, is_over=True)


class Lookups:
    """Lookups of new prompts in a remote store, on threads of their own.

    Owns threads that query the store. Found states are added to the prefix tree on the engine's
    loop. Thread rule: begin(), advance(), wait() and close() are the engine loop's.

    Invariants:
    1. A lookup is over within LOOKUP_SECONDS, however slow the store is. A later result helps the
       next prompt. After three late lookups in a row there is a pause without lookups.
    2. A state is added only with a complete manifest of the same salt, and only if its tokens are a
       prefix of the prompt. Its bytes are verified by digests when it is loaded.
    3. No state written before a flush of any node is added, once the store has recorded the flush.
       Results requested before a flush of this node are dropped.
    """

    def __init__(
        self, bucket: Bucket, objects: RemoteObjects, clock: Clock = time.monotonic
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
        """Begin a lookup of a prompt. It is over at once if it is not worth its cost, or the store
        is paused. beyond: number of the prompt's first tokens stored on this node."""
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
        """Return True if a request waits for a lookup."""
        return bool(self._waiting)

    def advance(self) -> Iterator[Manifest]:
        """Yield the manifest of each found state; end its lookup when the iterator resumes. Then
        end late lookups. REQUIRES: the caller exhausts the iterator."""
        self._any_found.clear()
        while self._found:
            lookup, manifest = self._found.popleft()
            if manifest is not None and lookup.flushes == self._objects.flushes:
                yield manifest
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
        """Wait until a lookup is answered, for at most `seconds`."""
        self._any_found.wait(seconds)

    def close(self) -> None:
        """Stop the lookup threads. Idempotent. Queries in progress end within the client's time
        limits, without effect."""
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
                # Skip late lookups, so they do not delay others.
                found = None if lookup.is_over else self._look_up(lookup)
            except Exception as error:
                # The thread goes on after any answer of a store. Without it every lookup would be
                # late.
                if not isinstance(error, RemoteFailed):
                    log.exception("a lookup broke")
                self._objects.failed(error)
                found = None
            self._found.append((lookup, found))
            self._any_found.set()

    def _look_up(self, lookup: Lookup) -> Manifest | None:
        keys = ObjectKeys(lookup.salt, lookup.tokens)
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
    """Add a remote state to the prefix tree in tier `tier`, if it is stored nowhere on this node
    and there is space. written: digests of the tier's contents; the state's digests are added."""
    found = cache.adopt(tier, Keys(manifest.prompt), salt=manifest.salt, kind=_KINDS[manifest.kind])
    if found is None:
        return
    pages, first, slot = found
    objects.adopted(manifest, pages, first, slot)
    written.pages.update(zip(pages[first:], manifest.page_digests[first:], strict=True))
    written.slots[slot] = int.from_bytes(manifest.slot_digest, "big")


GIB = 2**30
_FEWEST_SLABS = 2
_START_SECONDS = 30.0
_PROBE_BYTES = 64 << 10


@dataclass(frozen=True)
class RemoteMemory:
    """A remote tier. objects: its pages and states. slabs: number of slabs with ids in the prefix
    tree. pages_a_second: long-run limit of written pages per second; None: no limit. folder_for:
    opens the folder of other weights, by the digest of their files."""

    objects: RemoteObjects
    lookups: Lookups
    slabs: int
    pages_a_second: float | None = None
    folder_for: Callable[[str], Bucket] | None = None

    def change_weights(self, files_digest: str) -> None:
        """Use the folder of other weights from now on, as a node started with them does.
        files_digest: of these weights. REQUIRES: no copy is in progress. Raises RemoteFailed."""
        assert self.folder_for is not None, "a store opened without its contract"
        self.objects.turn_to(self.folder_for(files_digest))

    @property
    def counters(self) -> dict[str, int]:
        return {**self.objects.counters, **self.lookups.counters}

    def close(self) -> None:
        """Close lookups and objects. REQUIRES: no copier uses the tier any more."""
        self.lookups.close()
        self.objects.close()


def remote_memory(
    config: EngineConfig, layout: CacheLayout, contract: MakeContract
) -> RemoteMemory | None:
    """Open the remote tier of a node and probe the store.

    Return None if the config has no remote store. contract: makes the settings to compare before
    another node's bytes are used. Raises EngineConfigError if the store cannot be used.
    """
    if config.remote_cache is None or config.remote_cache_gib is None:
        return None
    slabs = int(config.remote_cache_gib * GIB) // layout.slab_bytes
    if slabs < _FEWEST_SLABS:
        least = _FEWEST_SLABS * layout.slab_bytes / GIB
        raise EngineConfigError(
            f"remote_cache_gib {config.remote_cache_gib} is {slabs} slabs; give at least "
            f"{least:.3g}"
        )
    agreed = contract()
    folder = folder_of(contract_digest(agreed))
    late = RemoteFailed(f"it took longer than {_START_SECONDS:g} s to be tried")
    try:
        credentials = read_credentials(config.remote_credentials)
        place = partial(open_bucket, config.remote_cache, config.remote_endpoint)
        bucket = place(folder, credentials)
        objects = within(_START_SECONDS, lambda: _opened(bucket, layout), late)
    except RemoteFailed as error:
        raise EngineConfigError(
            f"remote_cache {config.remote_cache}: {error}; fix that, or leave remote_cache out"
        ) from error
    budget = config.remote_write_budget
    log.info(
        "up to %.2f GiB of %s, folder %s, below this node's own tiers",
        *(config.remote_cache_gib, config.remote_cache, folder),
    )
    return RemoteMemory(
        objects,
        Lookups(bucket, objects),
        slabs,
        None if budget is None else budget * 1e6 / layout.page_bytes,
        lambda files: place(
            folder_of(contract_digest({**agreed, "weights_digest": files})), credentials
        ),
    )


def _opened(bucket: Bucket, layout: CacheLayout) -> RemoteObjects:
    probe(bucket)
    return RemoteObjects(bucket, layout)


def probe(bucket: Bucket) -> None:
    """Write an object to the store, list it, read it back, and remove it. Raises RemoteFailed."""
    name, content = f"probe/{secrets.token_hex(8)}", secrets.token_bytes(_PROBE_BYTES)
    bucket.put(name, content)
    listed = [each.name for each in bucket.names("probe/")]
    if bucket.get(name, _PROBE_BYTES) != content or not any(each.endswith(name) for each in listed):
        raise RemoteFailed("what it returns is not what was put there")
    bucket.delete(name)
