"""A disk outlives its node. Its entries are found again, whole and under the same salt, or not at
all."""

import errno
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from stat import S_IMODE

import numpy as np
import pytest
import torch

from scripts.chaos.tier_turns import LAYOUT, Turns
from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import kept_contract
from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.tiers.digests import DigestKind
from tasuki.engine.tiers.disk import kept_folder, kept_index
from tasuki.engine.tiers.disk.kept_folder import DiskFailed, KeptFolder
from tasuki.engine.tiers.disk.kept_index import (
    Heading,
    Kept,
    KeptIndex,
    Standing,
    Taken,
    encoded,
    records_in,
)
from tasuki.engine.tiers.tier import CPU_LINK
from tasuki.pycache.layout import PAGE_TOKENS
from tasuki.transfer.chunks.digest import word_keys
from tests.harness.engines import alone, prompt, submit, tiny_parts
from tests.harness.fork_server import forked_peer
from tests.harness.tiers import FaultyDisk, TieredEngine
from tests.harness.tiny_pictures import seeing_parts
from tests.harness.waiting import HANG_SECONDS

SLABS = 200
PROMPTS = [prompt(length, seed=length) for length in (350, 200, 70, 40, 129)]
NEXT = [each + alone(each, 2) + prompt(30, seed=9) for each in PROMPTS]


@pytest.fixture(autouse=True)
def near_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make reads cheap, because so few tokens would otherwise be computed."""
    monkeypatch.setattr(
        "tasuki.engine.assembly.parts.DISK_LINK", replace(CPU_LINK, fixed_seconds=0.0)
    )


class KeepingEngine(TieredEngine):
    def __init__(self, folder: Path, slabs: int = SLABS, budget: float | None = None) -> None:
        self.disk = FaultyDisk(folder, tiny_parts(slabs=2).layout, slabs)
        super().__init__(slabs=40, host_slabs=60, disk=self.disk.memory(budget))

    def close(self) -> None:
        self.lone.run()
        self.lone.assert_at_rest()
        super().close()

    def begins_with(self) -> list[int]:
        """Return the tokens of each prompt in NEXT that need not be computed."""
        found = []
        for each in NEXT:
            match = self.lone.engine._cache.match(submit("x", each, 1).prompt)
            found.append(max([match.usable_tokens, *(state.boundary for state in match.stored)]))
        return found


@pytest.fixture
def before(tmp_path: Path) -> list[int]:
    """Run a node that answers PROMPTS and ends. Return the cached tokens of NEXT there."""
    engine = KeepingEngine(tmp_path)
    for number, each in enumerate(PROMPTS):
        engine.lone.ask(f"first-{number}", each, 2)
    engine.lone.run()
    found = engine.begins_with()
    assert all(found)
    engine.close()
    return found


@pytest.fixture
def restarted(tmp_path: Path, before: list[int]) -> Iterator[KeepingEngine]:
    engine = KeepingEngine(tmp_path)
    yield engine
    engine.close()


def test_a_restarted_node_has_the_hits_of_before(
    restarted: KeepingEngine, before: list[int]
) -> None:
    found = restarted.begins_with()
    assert sum(found) >= 0.95 * sum(before)
    for number, each in enumerate(NEXT):
        assert restarted.lone.ask(f"next-{number}", each, 3) == alone(each, 3)
        assert restarted.lone.hit(f"next-{number}").usable_tokens >= found[number]
    assert restarted.lone.hit("next-0").loaded["disk"] > 0
    kept = restarted.reports[1].kept
    assert kept["restored"] >= len(PROMPTS) and kept["torn"] == kept["lost"] == 0


def test_a_write_budget_that_is_not_used_up_costs_no_hits(tmp_path: Path) -> None:
    first = KeepingEngine(tmp_path, budget=1e6)
    for turn, prompts in enumerate((PROMPTS, NEXT)):
        for number, each in enumerate(prompts):
            first.lone.ask(f"{turn}-{number}", each, 2)
    first.lone.run()
    found = first.begins_with()
    first.close()
    again = KeepingEngine(tmp_path, budget=1e6)
    assert sum(again.begins_with()) >= 0.95 * sum(found) > 0
    again.close()


def test_a_node_with_nothing_to_do_looks_again_at_a_budget_that_is_used_up(tmp_path: Path) -> None:
    engine = KeepingEngine(tmp_path, budget=0.05)
    assert engine.lone.engine.idle_seconds is None
    engine.lone.ask("first", PROMPTS[0], 2)
    engine.lone.run()
    assert engine.reports[1].budget_bytes["left"] < 0
    assert engine.lone.engine.idle_seconds is not None
    engine.close()


def test_it_keeps_what_it_kept_and_what_came_later(tmp_path: Path, before: list[int]) -> None:
    other = prompt(150, seed=77)
    second = KeepingEngine(tmp_path)
    second.lone.ask("other", other, 2)
    second.close()
    third = KeepingEngine(tmp_path)
    assert third.begins_with() == before
    assert third.lone.engine._cache.match(submit("x", other, 1).prompt).stored
    third.close()


def test_what_was_flushed_does_not_come_back(tmp_path: Path, before: list[int]) -> None:
    second = KeepingEngine(tmp_path)
    second.lone.post(m.FlushCache(1))
    second.lone.run()
    second.close()
    third = KeepingEngine(tmp_path)
    assert third.begins_with() == [0] * len(NEXT)
    third.close()


def test_what_was_flushed_while_the_disk_was_full_does_not_come_back(
    tmp_path: Path, before: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    second = KeepingEngine(tmp_path)

    def full(file: int, content: bytes) -> int:
        raise OSError(errno.ENOSPC, "full on purpose")

    monkeypatch.setattr(kept_index, "_write_all", full)
    second.lone.post(m.FlushCache(1))
    second.lone.run()
    second.close()
    monkeypatch.undo()
    third = KeepingEngine(tmp_path)
    assert third.begins_with() == [0] * len(NEXT)
    third.close()


def test_bytes_that_changed_while_no_node_ran_are_never_served(
    tmp_path: Path, before: list[int]
) -> None:
    (file,) = tmp_path.rglob("slabs")
    content = np.fromfile(file, np.uint8)
    content[7::8] ^= 0x80
    content.tofile(file)
    engine = KeepingEngine(tmp_path)
    assert engine.lone.ask("next", NEXT[0], 3) == alone(NEXT[0], 3)
    assert engine.lone.hit("next").causes[LOAD_FAILED] == before[0]
    engine.close()


def test_damage_that_sums_of_words_miss_is_found(tmp_path: Path, before: list[int]) -> None:
    """The digest of layer chunks is linear: top bytes of two words may change with its sum the
    same."""
    keys = word_keys(2).tolist()
    change = next(
        (one, two)
        for one in range(1, 256)
        for two in range(1, 256)
        if (one * keys[0] + two * keys[1]) % 256 == 0
    )
    (file,) = tmp_path.rglob("slabs")
    words = np.fromfile(file, np.uint64)
    for place, each in enumerate(change):
        words[place::512] += np.uint64(each << 56)
    words.tofile(file)
    engine = KeepingEngine(tmp_path)
    assert engine.lone.ask("next", NEXT[0], 3) == alone(NEXT[0], 3)
    assert engine.lone.hit("next").causes[LOAD_FAILED] == before[0]
    engine.close()


def test_a_smaller_disk_has_what_lies_within_it(tmp_path: Path, before: list[int]) -> None:
    engine = KeepingEngine(tmp_path, slabs=8)
    assert engine.reports[1].kept["torn"] > 0
    for number, each in enumerate(NEXT):
        assert engine.lone.ask(f"next-{number}", each, 3) == alone(each, 3)
    engine.close()


def test_a_disk_that_takes_no_records_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = KeepingEngine(tmp_path)

    def full(file: int, content: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(kept_index, "_write_all", full)
    engine.lone.ask("first", PROMPTS[0], 2)
    assert engine.lone.ask("next", NEXT[0], 3) == alone(NEXT[0], 3)
    assert engine.reports[1].kept["failed"] > 0 and engine.reports[1].writes["done"] > 0
    engine.close()
    monkeypatch.undo()


def killed_at(told: Connection, folder: Path, what: str, count: int) -> None:
    """Run turns in a separate process until the disk takes half of a write; the process then dies.
    told: a pipe, with one message for each record written whole."""
    left = [count]
    # Several threads write at a time.
    counting = threading.Lock()

    def due(kind: str) -> bool:
        with counting:
            left[0] -= kind == what
            return left[0] == 0

    class Killing(FaultyDisk):
        def _move(self, what: str, call: object, memory: memoryview, offset: int) -> None:
            if what == "written" and offset < self.slabs * self._slab and due("bytes"):
                os.pwrite(self._file, memory[: len(memory) // 8192 * 4096], offset)
                os.kill(os.getpid(), signal.SIGKILL)
            super()._move(what, call, memory, offset)  # type: ignore[arg-type]

    whole = kept_index._write_all

    def write_all(file: int, content: bytes) -> int:
        if due("record"):
            os.write(file, content[: len(content) // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        written = whole(file, content)
        (found,) = records_in(content)
        # Only records of a named file count.
        if found is not None and os.readlink(f"/proc/self/fd/{file}").endswith("/index"):
            told.send(found[0])
        return written

    disk = Killing(folder, LAYOUT, 800)
    turns = Turns(seed=3, host_slabs=60, disk=disk)
    turns.faults._one_of = 1 << 30
    disk.fault = lambda what: None
    kept_index._write_all = write_all  # type: ignore[assignment]
    # With a larger limit it is hardly ever rewritten.
    kept_index._LEAST_BYTES = 4000  # type: ignore[misc]
    turns.play(10**6)


def check_after_a_kill(folder: Path, what: str, count: int) -> int:
    """Return the number of restored states, each right to the byte."""
    child, ours = forked_peer(killed_at, folder, what, count)
    numbers = []
    try:
        while ours.poll(HANG_SECONDS):
            numbers.append(ours.recv())
    except EOFError:
        pass
    child.join(HANG_SECONDS)
    assert child.exitcode == -signal.SIGKILL
    disk = FaultyDisk(folder, LAYOUT, 800)
    file = disk.folder.path / "index"
    content = [found for found in records_in(file.read_bytes()) if found is not None]
    # No complete record is lost.
    assert max([0, *numbers]) <= max(number for number, _ in content)
    turns = Turns(seed=4, host_slabs=200, disk=disk)
    memory = turns.tier._tiers[1].disk
    assert memory is not None
    counters = memory.index.counters
    assert counters["torn"] <= 1
    turns.faults._one_of = 1 << 30
    disk.fault = lambda what: None
    standing = Standing(LAYOUT, 800)
    for number, record in content:
        standing.add(number, record)
    for path in standing.paths():
        if path is not None:
            turns.ask(np.append(path.tokens, [5, 6, 7]).astype(np.int32))
            turns.finish()
    assert turns.outcome.wrong == 0
    ends = turns.tier.counters[1].loads
    # Slabs that were being written at the kill had been taken from their old entries before.
    assert ends["mismatch"] == ends["broken"] == 0
    assert turns.tier.close(HANG_SECONDS)
    return counters["restored"]


@pytest.mark.parametrize("what", ["bytes", "record"])
def test_a_kill_loses_what_was_being_written(tmp_path: Path, what: str) -> None:
    stood = []
    for count in (1, 5, 60):
        folder = tmp_path / str(count)
        folder.mkdir()
        stood.append(check_after_a_kill(folder, what, count))
    assert stood[0] == 0 and stood[-1] > 2


@pytest.mark.slow
@pytest.mark.timeout(1800)  # one process per place, 119 in all
@pytest.mark.parametrize("what", ["bytes", "record"])
def test_a_kill_at_any_write_loses_what_was_being_written(tmp_path: Path, what: str) -> None:
    for count in range(1, 120):
        folder = tmp_path / str(count)
        folder.mkdir()
        check_after_a_kill(folder, what, count)


def kept(start: int, above: tuple[int, int] | None, pages: list[int], salt: bytes = b"") -> Kept:
    tokens = np.arange(start, start + len(pages) * PAGE_TOKENS, dtype="<i4")
    return Kept(
        salt,
        start,
        above,
        tokens.tobytes(),
        "turn_end",
        np.array(pages, "<i4").tobytes(),
        bytes(16 * len(pages)),
        40 + (above is not None),
        bytes(16),
    )


SLAB = LAYOUT.blocks_per_slab
"""From a page of a slab to the same of the next."""
FIRST, SECOND = kept(0, None, [0, SLAB]), kept(128, (SLAB, 1), [2 * SLAB])
RECORDS = [
    encoded(0, Heading("c")),
    encoded(1, FIRST),
    encoded(2, SECOND),
    encoded(3, Taken(b"", b"")),
]


def test_a_record_that_rotted_is_none_and_the_others_stand() -> None:
    content = b"".join(RECORDS)
    whole = [found for found in records_in(content)]
    assert len(whole) == len(RECORDS) and None not in whole
    bounds = np.cumsum([len(each) for each in RECORDS]).tolist()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        found = [each for each in records_in(bytes(damaged)) if each is not None]
        lost = next(number for number, end in enumerate(bounds) if place < end)
        assert found == whole[:lost] + whole[lost + 1 :], place
        cut = [each for each in records_in(content[:place]) if each is not None]
        assert cut == whole[:lost], place


def paths(*records: tuple[int, Kept | Taken]) -> list[int | None]:
    """Return the tokens of each state's path."""
    standing = Standing(LAYOUT, 50)
    for number, record in records:
        standing.add(number, record)
    return [None if path is None else len(path.tokens) for path in standing.paths()]


def test_a_path_is_whole_or_none() -> None:
    first, second = (1, FIRST), (2, SECOND)
    assert paths(first, second) == [128, 192]
    assert paths(second) == [None]
    # Its page was taken since and written for another state.
    assert paths(first, second, (3, Taken(np.array([SLAB], "<i4").tobytes(), b""))) == [None, None]
    other = (3, kept(0, None, [0, SLAB], salt=b"tenant"))
    assert paths(first, second, other) == [None, 128]
    # A slot takes the slab's pages.
    assert paths(first, second, (3, Taken(b"", np.array([0], "<i4").tobytes()))) == [None, None]
    # The page above is of another salt, or ends elsewhere.
    assert paths(first, (2, kept(128, (SLAB, 1), [9 * SLAB], salt=b"t"))) == [128, None]
    assert paths(first, (2, kept(128, (0, 1), [2 * SLAB]))) == [128, None]


def test_a_folder_is_one_nodes_and_its_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kept_folder, "_LOCK_SECONDS", 0.0)
    os.umask(os.umask(0))
    disk = FaultyDisk(tmp_path, LAYOUT, 4)
    disk.memory()
    assert S_IMODE(disk.folder.path.stat().st_mode) == 0o700
    files = sorted(disk.folder.path.iterdir())
    assert [file.name for file in files] == ["index", "lock", "slabs"]
    assert {S_IMODE(file.stat().st_mode) for file in files} == {0o600}
    with pytest.raises(DiskFailed, match=f"in use by another node, process {os.getpid()}"):
        FaultyDisk(tmp_path, LAYOUT, 4)
    other = KeptFolder(tmp_path, {"model": "another"})
    assert other.others == 1 and other.path != disk.folder.path
    disk.folder.close()
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    with pytest.raises(DiskFailed, match="and this node of user 4242"):
        FaultyDisk(tmp_path, LAYOUT, 4)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    folder = KeptFolder(tmp_path, {})
    outside = tmp_path / "outside"
    outside.write_bytes(b"others")
    (folder.path / "index").symlink_to(outside)
    with pytest.raises(DiskFailed, match="cannot be used"):
        KeptIndex(folder, LAYOUT, 4)
    folder.close()
    (folder.path / "index").unlink()
    os.link(outside, folder.path / "index")
    folder = KeptFolder(tmp_path, {})
    with pytest.raises(DiskFailed, match="2 names"):
        KeptIndex(folder, LAYOUT, 4)
    assert outside.read_bytes() == b"others"
    folder.close()


def test_a_tower_s_constants_are_part_of_the_contract_and_text_s_contract_stays() -> None:
    parts = seeing_parts()
    assert parts.tower is not None
    weights, kind = parts.model.weights, DigestKind.of(torch.device("cpu"))
    text = kept_contract("w", parts.model_config, weights, LAYOUT, kind)
    seen = kept_contract("w", parts.model_config, weights, LAYOUT, kind, parts.sight)
    assert seen == {**text, "pictures": parts.tower.config.constants}
    assert f"{parts.tower.config.rotary_sections[0]}/" in seen["pictures"]


def test_nodes_on_a_cpu_and_on_a_gpu_leave_each_others_folder_alone(tmp_path: Path) -> None:
    """Neither can compare digests made by the other."""
    parts = tiny_parts(slabs=2)
    folders = [
        KeptFolder(
            tmp_path, kept_contract("w", parts.model_config, parts.model.weights, LAYOUT, kind)
        )
        for kind in map(DigestKind.of, (torch.device("cpu"), torch.device("cuda", 1)))
    ]
    assert len({folder.path for folder in folders}) == 2 and folders[1].others == 1
    for folder in folders:
        folder.close()


def test_another_contracts_index_is_not_read(tmp_path: Path) -> None:
    folder = KeptFolder(tmp_path, {})
    (folder.path / "index").write_bytes(b"".join(RECORDS))
    index = KeptIndex(folder, LAYOUT, 4)
    assert index.found == 0
    index.close()
