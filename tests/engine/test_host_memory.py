"""How much host memory a node keeps below its arena, and copies to it by a thread."""

from pathlib import Path

import pytest

from scripts.chaos.tier_turns import LAYOUT, Turns
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.tiers.copy_job import CopyJob, Direction, JobEnd
from tasuki.engine.tiers.copy_thread import CopyThread
from tasuki.engine.tiers.host_memory import available_bytes, host_arena, host_slabs
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import Place
from tasuki.utils.options import Auto
from tests.harness.tiers import FaultyCopies
from tests.harness.waiting import HANG_SECONDS, until

SLABS_OF_A_GIB = 2**30 // LAYOUT.slab_bytes


def config(gib: float | Auto | None, **settings: object) -> EngineConfig:
    return EngineConfig(model="m", host_cache_gib=gib, **settings)  # type: ignore[arg-type]


def test_as_many_slabs_as_were_asked_for() -> None:
    assert host_arena(config(None), LAYOUT) is None
    arena = host_arena(config(1 / 64), LAYOUT)
    assert arena is not None and arena.slabs == SLABS_OF_A_GIB // 64
    assert arena.key.place is Place.HOST and arena.layout == LAYOUT
    assert host_slabs(config(Auto.AUTO), LAYOUT, 2**30) == SLABS_OF_A_GIB // 2


@pytest.mark.parametrize(("gib", "words"), [(1.01, "more than the 1.0 GiB"), (1e-9, "0 slabs")])
def test_what_cannot_be_had_is_refused(gib: float, words: str) -> None:
    with pytest.raises(EngineConfigError, match=words):
        host_slabs(config(gib), LAYOUT, 2**30)


def test_the_control_group_bounds_what_is_available(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 99 kB\nMemAvailable:      64 kB\n")
    assert available_bytes(meminfo, tmp_path) == 64 * 1024
    (tmp_path / "memory.current").write_text("1000\n")
    (tmp_path / "memory.max").write_text("max\n")
    assert available_bytes(meminfo, tmp_path) == 64 * 1024
    (tmp_path / "memory.max").write_text("5000\n")
    assert available_bytes(meminfo, tmp_path) == 4000
    meminfo.write_text("MemTotal: 99 kB\n")
    with pytest.raises(EngineConfigError, match="leave host_cache_gib out"):
        available_bytes(meminfo, tmp_path)


class Copied:
    """A thread between two small arenas."""

    def __init__(self) -> None:
        self.arena, self.below = Arena(LAYOUT, 8), Arena(LAYOUT, 8)
        self.segments = FaultyCopies(self.arena, self.below)
        self.thread = CopyThread(self.segments)
        self.ends: dict[int, JobEnd] = {}

    def begin(self, number: int, direction: Direction, slab: int = 0) -> None:
        """Begin a copy of the slab's first page and of the next slab's slot."""
        page, slot = slab * LAYOUT.blocks_per_slab, slab + 1
        self.thread.begin(CopyJob(number, direction, ((page, page),), (slot, slot)))

    def await_ends(self, count: int) -> list[int]:
        def ended() -> bool:
            self.ends.update(self.thread.take_ended())
            return len(self.ends) == count

        until(ended, self.ends)
        return list(self.ends)


def test_loads_go_before_writes_that_wait() -> None:
    copied = Copied()
    copied.begin(1, Direction.DOWN)
    copied.await_ends(1)
    copied.segments.hold("pages_down")
    for number in (2, 3):
        copied.begin(number, Direction.DOWN, slab=2)
    copied.segments.await_inside("pages_down")
    copied.begin(4, Direction.UP)
    copied.segments.let_go()
    # The running write stops after its segment, and the next one waits.
    assert copied.await_ends(4) == [1, 4, 2, 3]
    assert set(copied.ends.values()) == {JobEnd.DONE}
    assert copied.thread.close(HANG_SECONDS)


def test_what_is_cancelled_ends_before_its_next_piece() -> None:
    copied = Copied()
    copied.begin(1, Direction.DOWN)
    copied.await_ends(1)
    copied.segments.hold("pages_up")
    copied.begin(2, Direction.UP)
    copied.segments.await_inside("pages_up")
    copied.begin(3, Direction.UP)
    for number in (2, 3):
        copied.thread.cancel(number)
    copied.segments.let_go()
    copied.await_ends(3)
    assert copied.ends == {1: JobEnd.DONE, 2: JobEnd.CANCELLED, 3: JobEnd.CANCELLED}
    assert copied.thread.close(HANG_SECONDS)


def test_what_was_never_written_is_never_loaded() -> None:
    copied = Copied()
    copied.begin(1, Direction.UP)
    copied.await_ends(1)
    assert copied.ends == {1: JobEnd.MISMATCH}
    assert copied.thread.close(HANG_SECONDS)


def test_a_closed_thread_cancels_all_and_takes_nothing() -> None:
    copied = Copied()
    copied.segments.hold("pages_down")
    for number in (1, 2):
        copied.begin(number, Direction.DOWN)
    copied.segments.await_inside("pages_down")
    assert not copied.thread.close(0.01)
    copied.begin(3, Direction.UP)
    copied.segments.let_go()
    assert copied.thread.close(HANG_SECONDS)
    copied.await_ends(3)
    assert set(copied.ends.values()) == {JobEnd.CANCELLED}


def test_ids_and_bytes_agree_while_copies_fail() -> None:
    turns = Turns(seed=3)
    turns.play(300)
    assert turns.outcome.wrong == 0 and turns.ends["landed"] > 200
    assert turns.ends["failed"] > 0 and sum(turns.faults.made.values()) > 10
    assert turns.tier.close(HANG_SECONDS)


def test_without_digests_the_same_turns_start_from_wrong_bytes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The control: the comparison of bytes finds wrong ones."""
    monkeypatch.setattr("tasuki.engine.tiers.copy_thread._mismatched", lambda job: JobEnd.DONE)
    turns = Turns(seed=3)
    turns.play(300)
    assert turns.outcome.wrong > 0
    assert "wrong bytes" in capsys.readouterr().out
    assert turns.tier.close(HANG_SECONDS)
