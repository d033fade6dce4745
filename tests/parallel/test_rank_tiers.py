"""Tiers below arenas of several ranks: a copy is of use once every rank has it, and what one rank
has wrong, or not at all, none of them computes with."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages.evictions import LOAD_FAILED
from tasuki.engine.parallel import messages as r
from tasuki.engine.parallel.tiers.rank_copier import RankCopier
from tasuki.engine.tiers.copy_job import CopyJob, Direction, JobEnd, WriteLabel
from tasuki.engine.tiers.tier_prices import CPU_LINK
from tasuki.model.config import ModelConfig
from tests.harness.engines import Lone, prompt
from tests.harness.goldens import reference_dir
from tests.harness.rank_engines import rank_engine
from tests.harness.waiting import until
from tests.parallel.test_ranks import Cast

MODEL = "tp4-dense"
MIB = 8
LONG = 100


@pytest.fixture(autouse=True)
def near_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few tokens would be computed rather than read."""
    monkeypatch.setattr("tasuki.engine.build.DISK_LINK", CPU_LINK)


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


def tiered(folder: Path | None = None, ranks: int = 2, **more: object):  # type: ignore[no-untyped-def]
    below = {} if folder is None else {"disk_cache": str(folder), "disk_cache_gib": 0.12}
    return rank_engine(
        reference_dir(MODEL),
        tensor_parallel=ranks,
        arena_mib=MIB,
        host_cache_gib=0.06,
        **below,
        **more,
    )


VOCAB = ModelConfig.load(reference_dir(MODEL)).vocab
CASES = {
    case["name"]: case
    for case in json.loads((reference_dir(MODEL) / "golden.json").read_text())["cases"]
    if len(case["prompt"]) > LONG
}


def asked(engine: Lone, turn: str) -> dict[str, m.HitBreakdown]:
    """Every case, each behind a prompt that takes the arena from it; all as one rank answers."""
    for name, case in CASES.items():
        answer = engine.ask(f"{name}-{turn}", case["prompt"], len(case["greedy"]))
        assert answer == case["greedy"], (name, turn)
        length = engine.engine._cache.capacity_tokens(3) - 64
        push = [3 + token % (VOCAB - 3) for token in prompt(length, seed=len(name))]
        engine.ask(f"push-{name}-{turn}", push, 1)
    return {name: engine.hit(f"{name}-{turn}") for name in CASES}


def test_every_golden_comes_back_from_below_every_rank() -> None:
    assert CASES
    with tiered() as engine:
        asked(engine, "first")
        hits = asked(engine, "second")
        assert all(hit.loaded.get("host", 0) > 0 for hit in hits.values()), hits
        host = engine.stats().tiers[0]
        assert host.loads["done"] >= len(CASES) and host.writes["done"] > 0
        engine.assert_at_rest()
        engine.engine.close()


def disks(folder: Path) -> list[Path]:
    return sorted(folder.glob("tasuki-*"))


def ended(engine: Lone) -> None:
    engine.run()
    engine.assert_at_rest()
    engine.engine.close()


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """The folder of two ranks that answered every case."""
    with tiered(tmp_path) as engine:
        asked(engine, "first")
        ended(engine)
    assert len(disks(tmp_path)) == 2
    return tmp_path


def test_ranks_find_what_they_kept(kept: Path) -> None:
    with tiered(kept) as engine:
        assert engine.stats().tiers[1].kept["restored"] >= len(CASES)
        hits = asked(engine, "again")
        assert all(hit.loaded.get("disk", 0) > 0 for hit in hits.values()), hits
        ended(engine)


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
        assert engine.stats().tiers[1].kept["restored"] >= len(CASES)
        hits = asked(engine, "again")
        for hit in hits.values():
            assert hit.causes[LOAD_FAILED] > 0 and "disk" not in hit.loaded
        assert engine.stats().tiers[1].loads["mismatch"] >= len(CASES)
        ended(engine)
