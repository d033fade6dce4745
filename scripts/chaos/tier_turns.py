"""Turns of conversations without a model: the cache, the lower tier and its copies, and arena
memory filled with marks. The mark of a page or a state is computed from its own tokens.

The data a turn starts from is compared, word for word, with the marks of its own tokens.
"""

import threading
from collections import Counter, deque
from dataclasses import dataclass

import numpy as np
import xxhash
from numpy.typing import NDArray

from tasuki.engine.runner.base import Event
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.engine.tiers.disk.kept_index import restore
from tasuki.engine.tiers.lower_tiers import LoadEnd, LowerTiers
from tasuki.engine.tiers.tier import LowerTier, TierPrices
from tasuki.engine.tiers.tier_copiers import disk_copier
from tasuki.pycache._cpp_cache import Allocation, CheckpointKind
from tasuki.pycache.arena import Arena, run_copies
from tasuki.pycache.layout import PAGE_TOKENS, ArenaKey, CacheLayout, Place
from tasuki.pycache.parts import Heads, LayerCache, Part, Whole
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.tiers import Fault, FaultyCopies, FaultyDisk
from tests.harness.waiting import ManualClock

_PAGES = LayerCache("pages", page=(Part("kv", (1, 2, 64, 2), "float32", Heads(1)),))
_STATE = LayerCache(
    "state",
    slot=(
        Part("window", (8, 4), "float32", Whole()),
        Part("matrix", (2, 16, 8), "float32", Heads(2)),
    ),
)
LAYOUT = CacheLayout((_STATE, _PAGES, _PAGES))
Tokens = NDArray[np.int32]
_ABORTED, _LATE = 150, 400
"""One load in _ABORTED is aborted, and one in _LATE is late."""
_MOST_AT_ONCE = 4
_MOST_UNWRITTEN = 16
"""Largest number of waiting writes. If turns outran the copy thread, they would find nothing in the
lower tier."""
_SAID = 10_000


class RandomFaults:
    """Random faults of copies, determined by a seed: one call in `one_of` returns a fault, the
    others None. Thread rule: any thread."""

    def __init__(self, seed: int, one_of: int) -> None:
        self._random = np.random.default_rng(seed)
        self._one_of = one_of
        self.made: Counter[str] = Counter()
        self._lock = threading.Lock()

    def __call__(self, name: str) -> Fault | None:
        with self._lock:
            if self._random.integers(self._one_of):
                return None
            fault = list(Fault)[self._random.integers(len(Fault))]
            self.made[fault.name.lower()] += 1
        return fault


@dataclass
class Outcome:
    turns: int = 0
    loads: int = 0
    wrong: int = 0


class Turns:
    def __init__(
        self, seed: int, slabs: int = 40, host_slabs: int = 300, disk: FaultyDisk | None = None
    ) -> None:
        """Set up the cache and its tiers. slabs: size of the arena. host_slabs: size of the host
        memory. disk: tier below host memory, or none."""
        self.arena = Arena(LAYOUT, slabs)
        self.host = Arena(LAYOUT, host_slabs, key=ArenaKey(Place.HOST))
        prices = TierPrices(1.0, 0.1, 0.1, 1e-6)
        configs = [prices.config(host_slabs)]
        if disk is not None:
            configs.append(prices.config(disk.slabs, filling="ahead"))
        self.cache = HybridPrefixCache(self.arena, tiers=configs, policy="auto")
        self.faults = RandomFaults(seed + 1, 60)
        copies = FaultyCopies(self.arena, self.host, self.faults)
        self.clock = ManualClock()
        copier = CopyThread(copies)
        tiers = [LowerTier("host", copier, prices)]
        if disk is not None:
            disk.fault = RandomFaults(seed + 2, 60)
            memory = disk.memory()
            below = disk_copier(self.arena, self.host, copier, memory)
            tiers.append(LowerTier("disk", below, prices, disk=memory))
            restore(self.cache, 1, memory.index)
        self.tier = LowerTiers(self.cache, self, tiers, self.clock)
        self.outcome, self.ends = Outcome(), Counter[str]()
        self._random = np.random.default_rng(seed)
        self._logs: list[Tokens] = [self._text(40) for _ in range(60)]
        self._loading: dict[int, tuple[Allocation, Tokens]] = {}
        self._landed: deque[tuple[Allocation, Tokens, LoadEnd]] = deque()
        words = (LAYOUT.block_bytes // 8, LAYOUT.slab_bytes // 8)
        whole = self.arena.bytes.numpy().view(np.int64)
        self._blocks, self._slots = whole.reshape(-1, words[0]), whole.reshape(-1, words[1])

    def record_event(self) -> Event:
        run_copies(self.arena, self.cache.take_copies())
        return lambda: True

    def play(self, loads: int) -> None:
        said = 0
        while self.outcome.loads < loads:
            if self.outcome.loads >= said + _SAID:
                said = self.outcome.loads
                self.cache.check_integrity()
                print(f"{said} loads, {self.outcome.wrong} wrong", flush=True)
            self.tier.advance()
            while self._landed:
                self._go_on(*self._landed.popleft())
            if (
                len(self._loading) < _MOST_AT_ONCE
                and self.cache.stats().waiting_writes < _MOST_UNWRITTEN
            ):
                self._turn()
            else:
                self.tier.wait(0.001)
            self.tier.write_down()
        self.finish()

    def _text(self, length: int) -> Tokens:
        return self._random.integers(0, 1000, length, dtype=np.int32)

    def _turn(self) -> None:
        number = int(self._random.integers(len(self._logs)))
        tokens = np.concatenate([self._logs[number], self._text(int(self._random.integers(5, 90)))])
        self._logs[number] = self._text(40) if len(tokens) > 500 else tokens
        self.ask(tokens)

    def finish(self) -> None:
        """Run until no load and no copy is in progress, then check the cache's integrity."""
        while self.tier.is_busy or self._landed:
            self.tier.advance()
            while self._landed:
                self._go_on(*self._landed.popleft())
            self.tier.wait(0.001)
        self.cache.check_integrity()

    def ask(self, tokens: Tokens) -> None:
        """Start a turn with these tokens, unless it gets no allocation. If it needs a load from a
        lower tier, the load continues afterwards."""
        allocation = self.cache.allocate_or_load(
            tokens,
            capacity_tokens=len(tokens),
            working_slots=2,
            load_wait=self.tier.load_wait,
        )
        run_copies(self.arena, self.cache.take_copies())
        if allocation is None:
            return
        self.outcome.turns += 1
        if allocation.load is None:
            self._compute(allocation, tokens)
            return
        self._poison(allocation)
        self.outcome.loads += 1
        number = allocation.load.id
        self._loading[number] = allocation, tokens

        def ended(end: LoadEnd) -> None:
            self._landed.append((*self._loading.pop(number), end))

        self.tier.load(allocation, ended)
        if self._random.integers(_ABORTED) == 0:
            self.tier.give_up(allocation)
            del self._loading[number]
        elif self._random.integers(_LATE) == 0:
            self.clock.now += 1e6

    def _go_on(self, allocation: Allocation, tokens: Tokens, end: LoadEnd) -> None:
        self.ends[end.value] += 1
        if end is LoadEnd.LANDED:
            self._compute(allocation, tokens)
        elif end is LoadEnd.FAILED:
            self.cache.release(allocation)

    def _compute(self, allocation: Allocation, tokens: Tokens) -> None:
        """Compare the cached data a turn starts from with its marks, then fill the other pages as
        if computed."""
        cached, pages = allocation.cached_tokens, allocation.pages.tolist()
        slots = allocation.working_slots
        ends = list(range(PAGE_TOKENS, cached + 1, PAGE_TOKENS))
        if cached % PAGE_TOKENS:
            ends.append(cached)
        right = self._hold(pages[: len(ends)], _signs(tokens, ends))
        state = self._slots[slots[0]][: LAYOUT.slot_bytes // 8]
        right = right and bool((state == _state_sign(tokens, cached)).all())
        self.outcome.wrong += not right
        if not right:
            print(f"wrong bytes behind {cached} of {len(tokens)} tokens", flush=True)
        numbers = range(cached // PAGE_TOKENS, -(-len(tokens) // PAGE_TOKENS))
        computed = [min(len(tokens), (number + 1) * PAGE_TOKENS) for number in numbers]
        self._fill([pages[number] for number in numbers], _signs(tokens, computed))
        self._slots[slots[1]][: LAYOUT.slot_bytes // 8] = _state_sign(tokens, len(tokens))
        if len(tokens) > cached:
            self.cache.insert(allocation, len(tokens), slots[1], CheckpointKind.TURN_END)
        self.cache.release(allocation)

    def _blocks_of(self, pages: list[int]) -> NDArray[np.int64]:
        """Return the indices of the memory blocks of pages, [pages, regions] int64. pages: page
        ids."""
        regions = np.arange(len(LAYOUT.regions)) * LAYOUT.pages_per_slab
        return np.array(pages, np.int64)[:, None] + regions

    def _hold(self, pages: list[int], signs: NDArray[np.int64]) -> bool:
        return bool((self._blocks[self._blocks_of(pages)] == signs[:, None, None]).all())

    def _fill(self, pages: list[int], signs: NDArray[np.int64] | int) -> None:
        self._blocks[self._blocks_of(pages)] = np.reshape(signs, (-1, 1, 1))

    def _poison(self, allocation: Allocation) -> None:
        self._fill(allocation.pages[allocation.shared_pages :].tolist(), -1)
        for slot in allocation.working_slots:
            self._slots[slot][:] = -1


def _sign(tokens: Tokens, end: int) -> int:
    """Return the mark (a hash) of the tokens before `end`."""
    # The hash is the same in every process.
    return xxhash.xxh3_64_intdigest(tokens[:end].tobytes()) >> 1


def _signs(tokens: Tokens, ends: list[int]) -> NDArray[np.int64]:
    """Return the mark of each page: a hash of its own tokens and all tokens before them. ends:
    number of tokens up to each page's end."""
    return np.array([_sign(tokens, end) for end in ends], np.int64)


def _state_sign(tokens: Tokens, end: int) -> int:
    return 0 if end == 0 else _sign(tokens, end) ^ 1
