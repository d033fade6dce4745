"""`tasuki bench tiers`: copies between the arena and host memory. Measures their rate, the first
token of a session loaded from host memory, and their cost to concurrent engine steps."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from statistics import median

import torch

from tasuki.bench.measure.report import Report, Row
from tasuki.bench.measure.rig import Answer, Rig, page_ids, random_parts
from tasuki.bench.measure.timing import median_seconds
from tasuki.engine.assembly.memory_plan import MIB
from tasuki.engine.config import EngineConfig
from tasuki.engine.tiers.copy_job import CopyJob, Direction
from tasuki.engine.tiers.host_memory import arena_below
from tasuki.engine.tiers.segment_copies import SegmentCopies
from tasuki.engine.tiers.tier_copiers import host_copies
from tasuki.model.config import ModelConfig
from tasuki.pycache.arena import Arena, PagePairs
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.utils.flags import parse_configs
from tasuki.utils.options import option

from .config import BenchConfig
from .errors import BenchError

_SEGMENT_BYTES = 64 << 20
_END_SECONDS = 30.0


class Mover:
    """Copies at a steady rate between two arenas of its own, to disturb other measured work. Thread
    rule: the caller's thread. During moving() a separate thread copies."""

    def __init__(self, copies: SegmentCopies, layout: CacheLayout, slabs: int) -> None:
        """Set up the copies. slabs: number of slabs of both arenas; nothing else uses them."""
        self._copies = copies
        self._layout = layout
        self._pages = [(page, page) for page in page_ids(layout, range(1, slabs))]
        self._moved = 0

    @property
    def size(self) -> int:
        """Return the bytes of one whole copy: all pages and a slot."""
        return len(self._pages) * self._layout.page_bytes + self._layout.slot_bytes

    def move(self, way: Direction) -> float:
        """Copy everything once, and return the seconds. way: to the lower arena (a write), or up
        from it (a load)."""
        began = time.perf_counter()
        self._copy(CopyJob(0, way, tuple(self._pages), (0, 0)))
        return time.perf_counter() - began

    def _copy(self, job: CopyJob) -> None:
        begin = self._copies.up if job.direction is Direction.UP else self._copies.down
        copy = begin(job)
        while copy.advance():
            pass
        copy.digests()
        copy.settle()

    @contextmanager
    def moving(self, direction: Direction, bytes_a_second: float) -> Iterator[None]:
        """Copy at the given rate in the given direction until the block ends. Raises BenchError if
        the reached rate was lower than nine tenths of it."""
        ends = threading.Event()
        self._moved = 0
        thread = threading.Thread(target=self._move, args=(direction, bytes_a_second, ends))
        began = time.perf_counter()
        thread.start()
        try:
            yield
        finally:
            ends.set()
            thread.join(_END_SECONDS)
        reached = self._moved / (time.perf_counter() - began)
        if reached < 0.9 * bytes_a_second:
            raise BenchError(
                f"{reached / 1e9:.2f} GB/s were {direction.value} and {bytes_a_second / 1e9:g} are "
                "asked for: give a lower --gb-a-second"
            )

    def _move(self, direction: Direction, bytes_a_second: float, ends: threading.Event) -> None:
        began = time.perf_counter()
        while not ends.is_set():
            for pages in self._parts(_SEGMENT_BYTES):
                self._copy(CopyJob(0, direction, tuple(pages), None))
                self._moved += len(pages) * self._layout.page_bytes
                ahead = self._moved / bytes_a_second - (time.perf_counter() - began)
                if ends.wait(max(0.0, ahead)):
                    return

    def _parts(self, size: int) -> Iterator[PagePairs]:
        at_once = max(1, size // self._layout.page_bytes)
        for first in range(0, len(self._pages), at_once):
            yield self._pages[first : first + at_once]


LEAST_SHARE = 0.8
"""Lowest accepted rate of copies with digests, as a share of the link's own rate."""
MOST_OF_A_RETURN = 1.3
"""Largest accepted ratio of a returning session's first-token time to max(load, prefill)."""
MOST_SLOWED = 0.02
_LINK_BYTES = {"cuda": 1 << 30, "cpu": 1 << 26}
_SPARE_SLABS = 8
"""Slabs of the arena in addition to a session's pages: for working slots, states and the suffix."""
_SESSIONS = 4
"""Number of sessions the host memory has space for."""
_ROUNDS = 6
_LONGER = 8192


@dataclass(frozen=True)
class TiersConfig:
    session_tokens: int = option(50_000, "of a session that comes back")
    suffix_tokens: int = option(800, "behind it, each time others")
    repeats: int = option(7, "returns; the median counts")
    gb_a_second: float = option(10.0, "that move beside steps")
    steps: int = option(120, "of each measured round")
    answers: int = option(4, "in a step, each of 2048 tokens or as many as there is room for")


def main(argv: Sequence[str]) -> int:
    config, own = parse_configs(
        "tasuki bench tiers", "Time what lies below the arena.", argv, BenchConfig, TiersConfig
    )
    longest = own.session_tokens + own.suffix_tokens + _LONGER
    # Leave out the memory for a longer context, because it is not measured here.
    model = config.model_config()
    model = replace(model, max_position=min(model.max_position, longest))
    report = config.reported(f"tiers {config.model}")
    engine = replace(config.engine_config(), max_batch=max(2, own.answers))
    layout = model.cache_layout(engine.stored_kv, engine.compute_dtype, engine.ssm_dtype)
    pages = -(-own.session_tokens // PAGE_TOKENS)
    slabs = -(-pages // layout.pages_per_slab) + 1
    link = {way: _link_rate(config, way) for way in Direction}
    report.note(
        f"the link moves {link[Direction.UP] / 1e9:.1f} GB/s up, {link[Direction.DOWN] / 1e9:.1f} "
        "down, in one piece of pinned memory"
    )
    arena, below = (make(layout, slabs, config.device) for make in (Arena, arena_below))
    mover = Mover(host_copies(arena, below), layout, slabs)
    moved = {
        way: median([mover.move(way) for _ in range(1 + own.repeats)][1:])
        for way in (Direction.DOWN, Direction.UP)
    }
    for name, way in (("load", Direction.UP), ("write", Direction.DOWN)):
        seconds, floor = moved[way], mover.size / link[way]
        rate = {"GB/s": mover.size / seconds / 1e9}
        name = f"{name} of {mover.size / 2**30:.2f} GiB, with its digests"
        reached = (f">= {LEAST_SHARE:.0%} of the link", floor >= LEAST_SHARE * seconds)
        report.add(Row(name, seconds, floor, extra=rate).asked(reached))
    rig = _rig(model, engine, layout, slabs, config.device)
    _returns(rig, own, report, moved[Direction.UP])
    _beside_steps(rig, own, report, mover)
    return 0


def _link_rate(config: BenchConfig, way: Direction) -> float:
    """Return the measured rate between arena and host memory, bytes a second. way: direction of the
    copy."""
    size, device = _LINK_BYTES[config.device], config.torch_device
    host = torch.zeros(size, dtype=torch.uint8, pin_memory=device.type == "cuda")
    there = torch.zeros(size, dtype=torch.uint8, device=device)
    source, target = (host, there) if way is Direction.UP else (there, host)
    return size / median_seconds(lambda: target.copy_(source, non_blocking=True), device)


def _rig(
    model: ModelConfig, engine: EngineConfig, layout: CacheLayout, slabs: int, device: str
) -> Rig:
    """Build an engine with an arena for one session and little more."""
    slabs += _SPARE_SLABS
    engine = replace(engine, arena_mib=-(-slabs * layout.slab_bytes // MIB))
    parts = random_parts(model, engine)
    # An exact arena: in whole MiB it might hold two sessions of a small model.
    arena, below = Arena(layout, slabs, device), arena_below(layout, _SESSIONS * slabs, device)
    return Rig(model, engine, replace(parts, arena=arena, host=below))


def _returns(rig: Rig, own: TiersConfig, report: Report, load: float) -> None:
    """Measure first tokens of two sessions in alternation: each evicts the other one from the arena
    to host memory. load: seconds to load one session."""
    sessions = [_session(rig, own), _session(rig, own)]
    standing = [_first_token(rig, own, sessions[1])[0] for _ in range(1 + own.repeats)][1:]
    before = rig.computed_behind_loads
    returned, loaded = [], 0
    for number in range(2 * own.repeats):
        seconds, tokens = _first_token(rig, own, sessions[number % 2])
        returned.append(seconds)
        loaded += tokens >= own.session_tokens
    joined = rig.computed_behind_loads - before
    prefill = median(standing)
    longer = max(load, prefill)
    name = f"first token of {own.suffix_tokens} tokens behind {own.session_tokens}"
    report.add(Row(f"{name} in the arena", prefill))
    typical = median(returned)
    row = Row(
        f"{name} from below",
        typical,
        others={"one after the other": load + prefill},
        extra={
            "times the longer": typical / longer,
            "slowest ms": 1e3 * max(returned),
            "returns": len(returned),
            "loaded whole": loaded,
            "computed behind a load": joined,
        },
    )
    soon = f"<= {MOST_OF_A_RETURN:g}x max(load, prefill)"
    report.add(row.asked((soon, typical <= MOST_OF_A_RETURN * longer)))


def _session(rig: Rig, own: TiersConfig) -> list[int]:
    """Run a new session's first turn, and copy the session below the arena. Returns the token ids
    of its prompt and answer."""
    prompt = rig.prompt(own.session_tokens)
    answer = rig.submit(prompt, 1)
    rig.rest()
    return prompt + answer.tokens


def _first_token(rig: Rig, own: TiersConfig, session: list[int]) -> tuple[float, int]:
    """Continue a session with new tokens. Returns the seconds to the first token, and the number of
    tokens loaded from a lower tier."""
    answer = rig.submit(session + rig.prompt(own.suffix_tokens - 1), 1)
    rig.rest()
    assert answer.usage is not None and answer.usage.hit is not None
    return answer.first_token_seconds, sum(answer.usage.hit.loaded.values())


def _beside_steps(rig: Rig, own: TiersConfig, report: Report, mover: Mover) -> None:
    rig.flush()
    tokens = min(2048, own.session_tokens // own.answers // 2)
    many = own.steps * (2 * _ROUNDS + 2) * 2
    answers = [rig.submit(rig.prompt(tokens), many) for _ in range(own.answers)]
    rig.run_until_tokens(answers, own.steps)
    for way in (Direction.DOWN, Direction.UP):
        alone: list[float] = []
        beside: list[float] = []
        for _ in range(_ROUNDS):
            for found, moving in (
                (alone, nullcontext()),
                (beside, mover.moving(way, own.gb_a_second * 1e9)),
            ):
                with moving:
                    found.append(_step_seconds(rig, answers, own.steps))
        slowed = median(one / other for one, other in zip(beside, alone, strict=True)) - 1
        row = Row(
            f"step of {own.answers} x {tokens} tokens, {own.gb_a_second:g} GB/s {way.value}",
            median(beside),
            others={"without": median(alone)},
            extra={"slower %": 100 * slowed},
        )
        report.add(row.asked((f"< {MOST_SLOWED:.0%} slower than without", slowed < MOST_SLOWED)))
    rig.abort(answers)
    rig.close()


def _step_seconds(rig: Rig, answers: Sequence[Answer], steps: int) -> float:
    times = answers[0].times
    rig.run_until_tokens(answers, len(times) + steps)
    return (times[-1] - times[-1 - steps]) / steps
