"""A fuzzer of the C++ prefix tree's Python binding. It sends well-formed and malformed calls. Each
call either works, or raises a typed error and changes nothing.

Usage: fuzz.py [--seconds 60] [--seed 0]. Every call comes from one seeded generator, so the seed
reproduces a finding. Also imported by the tests for a short run, and by fuzz_guided.py.
"""

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from tasuki.pycache._cpp_cache import (
    Allocation,
    CacheError,
    CheckpointKind,
    PrefixCache,
    TreeConfig,
    prefix_hashes,
)

NUMBERS = (-(2**63), -(2**31), -65, -1, 0, 1, 63, 64, 65, 640, 2**31 - 1, 2**31, 2**48, 2**63 - 1)
WRONG = (None, "tokens", 3.5, [1, 2], (), b"bytes", object(), 2**64, -(2**64), np.float64(1), True)
REFUSALS = (CacheError, TypeError)  # TypeError: the binding's error for a wrong type


class Finding(Exception):
    """A call neither worked nor left the tree unchanged; the message reproduces it."""


def state_of(tree: PrefixCache) -> tuple[Any, ...]:
    """Return the tree's counters. A refused call must leave them unchanged."""
    stats = tree.stats()
    pools = [
        (p.free, p.working, p.tree, p.granted, p.quarantined, p.pinned)
        for p in (stats.pages, stats.slots)
    ]
    counts = (stats.nodes, stats.ghost_nodes, stats.checkpoints, stats.allocations, stats.cursors)
    return (*pools, *counts, stats.prompt_tokens, stats.usable_tokens, stats.evicted_pages)


class Fuzzer:
    """A fuzzer. Owns one small prefix tree and the handles returned by its calls, including
    released handles."""

    def __init__(self, draw: random.Random) -> None:
        """Set up the tree. draw: source of every random choice; the same choices make the same
        calls."""
        self.draw = draw
        self.tree = PrefixCache(
            TreeConfig(slabs=12, blocks_per_slab=8, pages_per_slab=4, max_ghost_nodes=16)
        )
        other = PrefixCache(TreeConfig(slabs=2, blocks_per_slab=2, pages_per_slab=2))
        foreign = other.allocate(np.ones(3, np.int32), capacity_tokens=3, working_slots=1)
        assert foreign is not None
        self.allocations: list[Allocation] = [foreign]
        self.cursors: list[int] = []
        self.watches: list[int] = []
        self.held: list[int] = []  # quarantines
        self.calls = self.refused = 0

    def tokens(self) -> Any:
        draw = self.draw
        size = draw.choice((0, 1, 2, 63, 64, 65, 128, 300, 5_000))
        good = np.full(size, draw.randrange(3), np.int32)
        if size and draw.random() < 0.5:
            good[draw.randrange(size) :] = draw.randrange(3)
        shape = draw.randrange(12)
        if shape == 0:
            return good[::2]
        if shape == 1:
            return good.astype(draw.choice((np.int64, np.uint32, np.float32, np.bool_, ">i4")))
        if shape == 2:
            return good.reshape(1, -1)
        if shape == 3:
            return good[::-1]
        if shape == 4:
            return np.array(7, np.int32)
        if shape == 5:
            return draw.choice(WRONG)
        return good

    def number(self) -> Any:
        draw = self.draw
        if draw.random() < 0.05:
            return draw.choice(WRONG)
        return draw.choice(NUMBERS) if draw.random() < 0.4 else draw.randrange(0, 700)

    def few(self) -> Any:
        return self.number() if self.draw.random() < 0.1 else self.draw.randrange(0, 3)

    def salt(self) -> Any:
        return self.draw.choice((b"", b"", b"a", b"\0\xff", "text", None, 3))

    def cursor(self) -> Any:
        return self.draw.choice((None, None, *self.cursors[-3:], self.number()))

    def allocate(self) -> Any:
        if self.draw.random() < 0.03:
            return self.draw.choice(WRONG)
        return self.draw.choice(self.allocations[-6:] + self.allocations[:1])

    def slot(self, allocation: Any) -> Any:
        try:
            own = list(allocation.working_slots)
        except (*REFUSALS, AttributeError):
            own = []
        return self.draw.choice((None, *own, *own, self.number()))

    def step(self) -> None:
        """Make one call; check the tree at times. Raises Finding."""
        name, call = self.draw.choice(self._calls())
        before = state_of(self.tree)
        self.calls += 1
        try:
            call()
        except REFUSALS as refusal:
            self.refused += 1
            if state_of(self.tree) != before:
                raise Finding(f"{name} was refused ({refusal}) but changed the tree") from refusal
        except Exception as error:
            raise Finding(f"{name} raised {type(error).__name__}: {error}") from error
        if self.calls % 50 == 0:
            self.tree.check_integrity()

    def _calls(self) -> list[tuple[str, Callable[[], Any]]]:
        tree = self.tree
        allocation = self.allocate()
        kind = self.draw.choice((*CheckpointKind, "mark", 3))
        salt, cursor = self.salt(), self.cursor()
        return [
            ("match", lambda: tree.match(self.tokens(), salt, cursor)),
            ("capacity_tokens", lambda: tree.capacity_tokens(self.number())),
            ("open_cursor", lambda: self.cursors.append(tree.open_cursor(salt))),
            ("fork_cursor", lambda: self.cursors.append(tree.fork_cursor(cursor))),
            ("close_cursor", lambda: tree.close_cursor(cursor)),
            ("allocate", lambda: self._allocate(salt, cursor)),
            ("allocate", lambda: self._allocate(b"", None)),
            ("allocate_to_receive", lambda: self._allocate_to_receive(salt, cursor)),
            ("extend", lambda: tree.extend(allocation, self.number())),
            ("append", lambda: tree.append(allocation, self.tokens())),
            ("take_checkpoint_slot", lambda: tree.take_checkpoint_slot(allocation)),
            ("insert", lambda: tree.insert(allocation, self.number(), self.slot(allocation), kind)),
            ("release", lambda: tree.release(allocation)),
            ("release", lambda: tree.release(allocation)),
            ("grant", lambda: tree.grant(allocation)),
            ("accept_received", lambda: tree.accept_received(allocation)),
            ("quarantine", lambda: self.held.append(tree.quarantine(allocation))),
            ("free_quarantined", lambda: tree.free_quarantined(self._quarantine())),
            ("watch", lambda: self._watch()),
            ("drain_events", lambda: list(tree.drain_events(self._some_watch()))),
            ("unwatch", lambda: tree.unwatch(self._some_watch())),
            ("prefix_hashes", lambda: prefix_hashes(self.tokens(), salt)),
            ("read", lambda: self._read(self.draw.choice(self.allocations))),
        ]

    @staticmethod
    def _read(allocation: Allocation) -> None:
        assert allocation.match.prompt_tokens > 0
        assert len(allocation.pages) * 64 == allocation.capacity_tokens >= allocation.cached_tokens
        assert allocation.tokens > 0 and allocation.shared_pages <= len(allocation.pages)

    def _watch(self) -> None:
        stream = self.draw.choice(("all", "usable", "", None))
        self.watches.append(self.tree.watch(stream, self.number()))

    def _some_watch(self) -> Any:
        return self.draw.choice((*self.watches[-3:], self.number()))

    def _quarantine(self) -> Any:
        return self.draw.choice((*self.held[-2:], self.number()))

    def _keep(self, allocation: Allocation | None) -> None:
        if allocation is not None:
            self.allocations.append(allocation)

    def _allocate(self, salt: Any, cursor: Any) -> None:
        tokens = self.tokens()
        wanted = len(tokens) + self.draw.randrange(90) if isinstance(tokens, np.ndarray) and (
            tokens.ndim == 1 and self.draw.random() < 0.8
        ) else self.number()  # fmt: skip
        self._keep(
            self.tree.allocate(
                tokens,
                salt=salt,
                capacity_tokens=wanted,
                working_slots=self.few(),
                cursor=cursor,
            )
        )

    def _allocate_to_receive(self, salt: Any, cursor: Any) -> None:
        self._keep(
            self.tree.allocate_to_receive(
                self.tokens(),
                salt=salt,
                capacity_tokens=self.number(),
                working_slots=self.few(),
                cursor=cursor,
            )
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    end = time.monotonic() + options.seconds
    seed, calls, refused = options.seed, 0, 0
    while time.monotonic() < end:
        fuzzer = Fuzzer(random.Random(seed))
        for _ in range(2_000):
            try:
                fuzzer.step()
            except Finding as finding:
                raise SystemExit(f"seed {seed}, call {fuzzer.calls}: {finding}") from finding
        calls, refused, seed = calls + fuzzer.calls, refused + fuzzer.refused, seed + 1
    print(f"{calls} calls, {refused} refused with a typed error, no finding")


if __name__ == "__main__":
    main()
