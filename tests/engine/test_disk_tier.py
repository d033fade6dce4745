"""A disk below host memory. States evicted from host memory come back from the disk. A disk that
fails, returns wrong bytes or hangs changes no token."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from scripts.chaos.tier_turns import LAYOUT, Turns
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.handover.held_states import HeldStates
from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.roles.base import HandoverContext
from tasuki.engine.tiers.copy_job import CopyJob, Direction, JobEnd
from tasuki.engine.tiers.copy_thread import STUCK_SECONDS, CopyThread
from tasuki.engine.tiers.disk.disk_memory import DiskFile, disk_memory, probe
from tasuki.engine.tiers.disk.kept_folder import DiskFailed, KeptFolder
from tasuki.engine.tiers.lower_tiers import LATE_SECONDS
from tasuki.engine.tiers.store import PassingRows, Rows
from tasuki.engine.tiers.tier import CPU_LINK
from tasuki.pycache._cpp_cache import CheckpointKind, TierConfig
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.engines import alone, prompt, submit, tiny_parts
from tests.harness.kept_goldens import DiskGoldens
from tests.harness.tiers import Fault, FaultyCopies, FaultyDisk, TieredEngine, flip_everything
from tests.harness.waiting import HANG_SECONDS, ManualClock, until

PROMPT = prompt(350, seed=1)
NEXT = PROMPT + alone(PROMPT, 2) + prompt(40, seed=2)
EXPECTED = alone(NEXT, 4)
KEPT = 351


class TestGoldensFromADisk(DiskGoldens):
    device = "cpu"


class DiskEngine(TieredEngine):
    def __init__(self, folder: Path, slabs: int) -> None:
        self.disk = FaultyDisk(folder, tiny_parts(slabs=2).layout, 120)
        super().__init__(slabs=slabs, host_slabs=slabs, disk=self.disk.memory())

    def push_to_disk(self) -> None:
        """Push until PROMPT's states are stored only on the disk."""
        for seed in range(100, 108):
            self.empty_arena(seed)
            if self.places() == {"disk"}:
                return
        raise AssertionError(self.reports)

    def places(self) -> set[str]:
        """Return the tiers with a state of NEXT."""
        stored = self.lone.engine._cache.match(submit("x", NEXT, 1).prompt).stored
        return {("host", "disk")[state.tier] for state in stored}

    def answer(self, name: str) -> list[int]:
        return self.lone.ask(name, NEXT, 4)


@contextmanager
def engine_over(folder: Path, slabs: int) -> Iterator[DiskEngine]:
    engine = DiskEngine(folder, slabs)
    yield engine
    engine.disk.let_go()
    engine.lone.run()
    engine.lone.assert_at_rest()
    engine.close()


@pytest.fixture(autouse=True)
def near_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make reads cheap, because so few tokens would otherwise be computed."""
    monkeypatch.setattr("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK)


@pytest.fixture
def tiered(tmp_path: Path) -> Iterator[DiskEngine]:
    with engine_over(tmp_path, slabs=14) as engine:
        yield engine


@pytest.fixture
def below(tiered: DiskEngine) -> DiskEngine:
    """Return an engine that has answered PROMPT, with its state only on the disk."""
    tiered.lone.ask("first", PROMPT, 2)
    tiered.push_to_disk()
    return tiered


def test_what_host_memory_dropped_is_loaded(below: DiskEngine) -> None:
    assert below.answer("next") == EXPECTED
    hit = below.lone.hit("next")
    assert hit.usable_tokens == KEPT == sum(hit.loaded.values())
    assert hit.loaded["disk"] > 0
    host, disk = below.reports
    assert disk.loads["done"] == 1 and host.loads["done"] == 0
    assert disk.bytes["loaded"] > 0


def test_what_rotted_in_host_memory_before_it_was_written_is_never_served(
    tiered: DiskEngine,
) -> None:
    # Without the fault the disk would have it at once.
    tiered.disk.fault = lambda what: Fault.RAISE if what == "written" else None
    tiered.lone.ask("first", PROMPT, 2)
    tiered.disk.fault = lambda what: None
    assert tiered.parts.host is not None
    flip_everything(tiered.parts.host)
    tiered.push_to_disk()
    assert tiered.answer("next") == EXPECTED
    assert tiered.lone.hit("next").causes[LOAD_FAILED] == KEPT


@pytest.mark.parametrize("fault", Fault)
def test_a_disk_that_returns_something_else_is_not_believed(
    below: DiskEngine, fault: Fault
) -> None:
    below.disk.fault = lambda what: fault if what == "read" else None
    assert below.answer("next") == EXPECTED
    hit = below.lone.hit("next")
    assert hit.usable_tokens == 0 and hit.causes[LOAD_FAILED] == KEPT
    assert hit.usable_tokens + sum(hit.causes.values()) == len(NEXT)
    end = "broken" if fault is Fault.RAISE else "mismatch"
    assert below.reports[1].loads[end] == 1


@pytest.mark.parametrize("fault", [Fault.SKIP, Fault.RAISE])
def test_what_was_not_written_is_never_served(tiered: DiskEngine, fault: Fault) -> None:
    tiered.disk.fault = lambda what: fault if what == "written" else None
    tiered.lone.ask("first", PROMPT, 2)
    for seed in range(100, 102):
        tiered.empty_arena(seed)
    tiered.disk.fault = lambda what: None
    assert tiered.answer("next") == EXPECTED
    writes = tiered.reports[1].writes
    assert writes["broken" if fault is Fault.RAISE else "done"] > 0
    assert tiered.reports[1].loads["done"] == 0


def test_a_disk_that_hangs_holds_up_nobody(tmp_path: Path) -> None:
    # The arena has space for the prompt beside the ids held by the load in flight.
    with engine_over(tmp_path, slabs=22) as below:
        below.lone.ask("first", PROMPT, 2)
        below.push_to_disk()
        below.disk.hang()
        below.lone.post(submit("next", NEXT, 4))
        below.lone.step()
        assert below.disk.hangs.wait(HANG_SECONDS)
        other = prompt(20, seed=7)
        below.lone.post(submit("other", other, 3))
        below.step_until(lambda: below.is_over("other"))
        assert below.lone.tokens("other") == alone(other, 3)
        below.clock.now += 1e3 * LATE_SECONDS
        below.step_until(lambda: below.is_over("next"))
        assert below.lone.tokens("next") == EXPECTED
        assert below.lone.hit("next").causes[LOAD_FAILED] == KEPT
        assert below.reports[1].loads["late"] == 1


def test_what_a_write_reads_at_a_flush_goes_behind_it(tmp_path: Path) -> None:
    with engine_over(tmp_path, slabs=60) as engine:
        engine.disk.hang()
        engine.lone.post(submit("first", PROMPT, 2))
        engine.step_until(engine.disk.hangs.is_set)
        engine.step_until(lambda: engine.is_over("first"))
        engine.lone.post(m.FlushCache(0))
        engine.lone.step()
        assert engine.places() == {"host"}
        engine.disk.let_go()
        engine.lone.run()
        assert engine.places() == set()
        assert engine.answer("next") == EXPECTED
        assert engine.lone.hit("next").usable_tokens == 0


def test_a_state_that_the_arena_has_no_room_for_is_held_for_nobody(tmp_path: Path) -> None:
    long = prompt(900, seed=5)
    with engine_over(tmp_path, slabs=60) as engine:
        engine.lone.ask("long", long, 2)
    # Over the same disk, with less memory.
    with engine_over(tmp_path, slabs=14) as engine:
        cache, tiers = engine.lone.engine._cache, engine.lone.engine._tiers
        prompted = submit("x", long, 1).prompt
        (stored, *_) = cache.match(prompted).stored
        assert stored.boundary > cache.capacity_tokens(1)
        states = HeldStates(cast(HandoverContext, SimpleNamespace(cache=cache, tiers=tiers)))
        assert states.hold(prompted[: stored.boundary], b"", lambda arrived: None) is None


def test_ids_and_bytes_agree_while_a_disk_fails(tmp_path: Path) -> None:
    disk = FaultyDisk(tmp_path, LAYOUT, 800)
    turns = Turns(seed=3, host_slabs=60, disk=disk)
    turns.play(150)
    assert turns.outcome.wrong == 0
    # How many of them were no longer in host memory is the threads' doing.
    assert turns.tier.counters[1].loads["done"] > 0
    assert turns.tier.close(HANG_SECONDS)


def test_without_digests_the_same_turns_start_from_wrong_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control: the comparison of bytes finds wrong ones."""
    monkeypatch.setattr("tasuki.engine.tiers.copy_thread._mismatched", lambda job: JobEnd.DONE)
    turns = Turns(seed=3, host_slabs=60, disk=FaultyDisk(tmp_path, LAYOUT, 800))
    turns.faults._one_of = 1 << 30
    turns.play(600)
    assert turns.outcome.wrong > 0
    assert turns.tier.close(HANG_SECONDS)


def test_pieces_lie_apart(tmp_path: Path) -> None:
    file = DiskFile(KeptFolder(tmp_path, {}), LAYOUT, 4)
    pages = [
        slab * LAYOUT.blocks_per_slab + page
        for slab in (0, 2)
        for page in range(LAYOUT.pages_per_slab)
    ]
    passing = PassingRows()

    def of_pages(first: int) -> Rows:
        rows = passing.rows(len(pages), LAYOUT.page_bytes)
        rows[:] = first + np.arange(len(pages), dtype=np.uint8)[:, None]
        return rows

    file.put_pages(pages, of_pages(0))
    for slot in (1, 3):
        row = passing.rows(1, LAYOUT.slot_bytes)[0]
        row[:] = 100 + slot
        file.put_slot(slot, row)
    found = of_pages(50)
    file.get_pages(pages, found)
    assert (found == np.arange(len(pages))[:, None]).all()
    for slot in (1, 3):
        row = passing.rows(1, LAYOUT.slot_bytes)[0]
        file.get_slot(slot, row)
        assert (row == 100 + slot).all()


def test_a_disk_that_fails_again_and_again_is_given_up(tmp_path: Path) -> None:
    file = FaultyDisk(tmp_path, LAYOUT, 4)
    row = PassingRows().rows(1, LAYOUT.slot_bytes)[0]
    file.fault = lambda what: Fault.RAISE
    for _ in range(2):
        with pytest.raises(DiskFailed, match=r"could not be written: .*broken on purpose"):
            file.put_slot(0, row)
    file.fault = lambda what: None
    file.put_slot(0, row)
    file.fault = lambda what: Fault.RAISE
    for _ in range(3):
        with pytest.raises(DiskFailed, match="could not be read"):
            file.get_slot(0, row)
    file.fault = lambda what: None
    with pytest.raises(DiskFailed, match="given up"):
        file.get_slot(0, row)


def test_a_disk_that_lies_is_refused_at_the_start(tmp_path: Path) -> None:
    file = FaultyDisk(tmp_path, LAYOUT, 4)
    probe(file)
    for fault in (Fault.SKIP, Fault.FLIP):
        file.fault = lambda what, fault=fault: fault if what == "read" else None  # type: ignore[misc]
        with pytest.raises(DiskFailed, match="is not what was written"):
            probe(file)


def config(folder: Path, gib: float) -> EngineConfig:
    return EngineConfig(
        model="m",
        host_cache_gib=1.0,
        disk_cache=str(folder),
        disk_cache_gib=gib,
        disk_write_budget=10,
    )


def test_as_much_as_was_asked_for(tmp_path: Path) -> None:
    disk = disk_memory(config(tmp_path, 1 / 256), lambda _: LAYOUT, dict)
    assert disk is not None and 2 <= disk.file.slabs <= 2**22 // LAYOUT.slab_bytes
    assert disk.pages_a_second == pytest.approx(10e6 / LAYOUT.page_bytes)
    assert disk_memory(EngineConfig(model="m"), lambda _: LAYOUT, dict) is None


def test_a_disk_without_room_or_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match=r"there is no folder .*/none: .* mkdir -m 700"):
        disk_memory(config(tmp_path / "none", 1 / 256), lambda _: LAYOUT, dict)
    assert not (tmp_path / "none").exists()
    with pytest.raises(EngineConfigError, match="give another folder"):
        disk_memory(config(tmp_path, 1e9), lambda _: LAYOUT, dict)
    with pytest.raises(EngineConfigError, match="give at least"):
        disk_memory(config(tmp_path, 1e-9), lambda _: LAYOUT, dict)
    assert sum(path.stat().st_blocks for path in tmp_path.rglob("slabs")) == 0


def test_what_waits_behind_a_piece_that_does_not_end_is_given_up() -> None:
    clock = ManualClock()
    segments = FaultyCopies(Arena(LAYOUT, 4), Arena(LAYOUT, 4))
    thread = CopyThread(segments, clock=clock)
    segments.hold("slot_down")
    for transfer in (1, 2):
        thread.begin(CopyJob(transfer, Direction.DOWN, (), (0, transfer)))
    segments.await_inside("slot_down")
    assert thread.take_ended() == []
    clock.now += STUCK_SECONDS + 1
    assert thread.take_ended() == [(2, JobEnd.BROKEN)]
    thread.begin(CopyJob(3, Direction.UP, (), (0, 3)))
    assert thread.take_ended() == [(3, JobEnd.BROKEN)]
    segments.let_go()
    ends: list[tuple[int, JobEnd]] = []
    until(lambda: bool(ends.extend(thread.take_ended()) or ends), ends)
    assert ends == [(1, JobEnd.DONE)]
    thread.begin(CopyJob(4, Direction.UP, (), (1, 3)))
    until(lambda: bool(ends.extend(thread.take_ended()) or ends[1:]), ends)
    assert ends[1] == (4, JobEnd.DONE)
    assert np.array_equal(*(segments._arena.views("matrix")[0][slot].numpy() for slot in (0, 3)))
    assert thread.close(HANG_SECONDS)


def test_a_write_budget_fills_while_nobody_asks() -> None:
    """One state takes more than the budget has; it refills with time."""
    now = [0]
    tiers = [TierConfig(slabs=40), TierConfig(slabs=60, pages_a_second=0.05, filling="ahead")]
    cache = HybridPrefixCache(Arena(LAYOUT, 12), tiers=tiers, clock=lambda: now[0])
    for seed in (1, 2):
        now[0] += 1000
        asked = np.asarray(prompt(4 * PAGE_TOKENS, seed), np.int32)
        allocation = cache.allocate(asked, capacity_tokens=len(asked), working_slots=2)
        assert allocation is not None
        slot = allocation.working_slots[1]
        cache.insert(allocation, len(asked), slot, CheckpointKind.TURN_END)
        cache.release(allocation)

    def written() -> int:
        while (write := cache.next_write()) is not None:
            cache.acknowledge(write.id, True)
        return cache.stats().tiers[1].written_slots

    assert written() == 1
    left = cache.stats().tiers[1].budget_pages
    assert left is not None and left < 0 and cache.stats().tiers[0].budget_pages is None
    now[0] += 3_600_000
    assert written() == 2
