"""Tiers below arenas of several ranks. A copy is used only when every rank has it. If it is wrong
or missing on one rank, no rank computes with it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.parallel import messages as r
from tasuki.engine.parallel.tiers import RankCopier
from tasuki.engine.tiers.copy_job import CopyJob, Direction, JobEnd, WriteLabel
from tasuki.engine.tiers.tier import CPU_LINK
from tests.harness.rank_tiers import (
    asked,
    ended,
    goldens_come_back,
    goldens_come_back_from_disks,
    long_cases,
    tiered,
)
from tests.harness.waiting import until
from tests.parallel.test_ranks import Cast


@pytest.fixture(autouse=True)
def near_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make reads cheap, because so few tokens would otherwise be computed."""
    monkeypatch.setattr("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK)


@pytest.fixture
def cast() -> Iterator[Callable[..., Cast]]:
    with ExitStack() as stack:
        yield lambda count=1: Cast(stack, count)


class Own:
    """The leader's own copier, by hand."""

    def __init__(self) -> None:
        self.begun: list[CopyJob] = []
        self.cancelled: list[int] = []
        self.ended: list[tuple[int, JobEnd]] = []

    def begin(self, job: CopyJob) -> None:
        self.begun.append(job)

    def cancel(self, transfer: int) -> None:
        self.cancelled.append(transfer)

    def empty(self) -> None:
        self.begun.clear()

    def take_ended(self) -> list[tuple[int, JobEnd]]:
        found, self.ended = self.ended, []
        return found

    def wait(self, seconds: float) -> None:
        return


LABEL = WriteLabel(b"salt", 64, 7, np.arange(70, dtype=np.int32), "turn_end")
JOB = CopyJob(3, Direction.DOWN, ((1, 2), (5, 6)), (8, 9), LABEL)


def test_a_copy_is_good_where_it_was_on_every_rank(cast: Callable[..., Cast]) -> None:
    found, own = cast(2), Own()
    copier = RankCopier(own, 1, found.ranks)  # type: ignore[arg-type]
    heard = [puppet.hears() for puppet in found.puppets]
    for ends, expected in (
        ((JobEnd.DONE, JobEnd.DONE, JobEnd.DONE), JobEnd.DONE),
        ((JobEnd.DONE, JobEnd.MISMATCH, JobEnd.DONE), JobEnd.MISMATCH),
        ((JobEnd.BROKEN, JobEnd.DONE, JobEnd.MISMATCH), JobEnd.BROKEN),
    ):
        copier.begin(JOB)
        for words in heard:
            begun = next(words)
            assert isinstance(begun, r.BeginCopy) and begun.tier == 1
            assert begun.job.pages == JOB.pages and begun.job.slot == JOB.slot
            assert begun.job.label is not None and begun.job.label.salt == b"salt"
            assert (begun.job.label.tokens == LABEL.tokens).all()
        own.ended.append((3, ends[0]))
        assert copier.take_ended() == []
        found.puppets[0].say(r.CopyEnded(1, 3, ends[1]))
        until(lambda: bool(copier._theirs), "the end of a follower did not come")
        assert copier.take_ended() == []
        found.puppets[1].say(r.CopyEnded(1, 3, ends[2]))
        until(lambda: bool(copier._theirs), "the end of a follower did not come")
        assert copier.take_ended() == [(3, expected)]
    copier.cancel(3)
    copier.empty()
    for words in heard:
        assert next(words) == r.CancelCopy(1, 3) and next(words) == r.EmptyTier(1)
    assert own.cancelled == [3] and own.begun == []


def test_every_golden_comes_back_from_below_every_rank() -> None:
    goldens_come_back()


def disks(folder: Path) -> list[Path]:
    return sorted(folder.glob("tasuki-*"))


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of two ranks that answered every case."""
    folder = tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tasuki.engine.assembly.parts.DISK_LINK", CPU_LINK)
        with tiered(folder) as engine:
            asked(engine, "first")
            ended(engine)
    assert len(disks(folder)) == 2
    return folder


@pytest.fixture
def kept(original: Path, tmp_path: Path) -> Path:
    """Return a sparse copy of that folder; it takes no more disk than was written."""
    subprocess.run(["cp", "-a", "--sparse=always", f"{original}/.", tmp_path], check=True)
    return tmp_path


def test_ranks_find_what_they_kept(tmp_path: Path) -> None:
    goldens_come_back_from_disks(tmp_path)


def test_another_number_of_ranks_ignores_it(kept: Path) -> None:
    with tiered(kept, ranks=4) as engine:
        assert engine.stats().tiers[1].kept["restored"] == 0
        hits = asked(engine, "again")
        assert next(iter(hits.values())).usable_tokens == 0
        ended(engine)
    assert len(disks(kept)) == 6


@pytest.mark.parametrize("which", [0, 1])
def test_what_one_rank_has_not_none_uses(kept: Path, which: int) -> None:
    """The other's states are whole, and would be of no use alone."""
    os.remove(disks(kept)[which] / "index")
    with tiered(kept) as engine:
        assert engine.stats().tiers[1].kept["restored"] == 0
        hits = asked(engine, "again")
        assert next(iter(hits.values())).usable_tokens == 0
        ended(engine)


@pytest.mark.parametrize("which", [0, 1])
def test_what_one_rank_has_wrong_is_computed_by_all(kept: Path, which: int) -> None:
    file = disks(kept)[which] / "slabs"
    content = np.memmap(file, np.uint8, "r+")
    content ^= 1
    content.flush()
    with tiered(kept) as engine:
        assert engine.stats().tiers[1].kept["restored"] >= len(long_cases())
        hits = asked(engine, "again")
        for hit in hits.values():
            assert hit.causes[LOAD_FAILED] > 0 and "disk" not in hit.loaded
        assert engine.stats().tiers[1].loads["mismatch"] >= len(long_cases())
        ended(engine)
