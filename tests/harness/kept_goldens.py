"""Tests: a node gives the goldens' answers from the cache an earlier node left on a disk, or
another node in a remote store. One body for every device: a test file names its device in a
subclass."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import ClassVar

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.tiers.remote.bucket import Bucket
from tasuki.engine.tiers.remote.remote_memory import LEAST_GAIN, Lookups, RemoteMemory
from tasuki.engine.tiers.remote.remote_objects import RemoteObjects
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS

from .engines import Lone, engine_config, prompt
from .goldens import Golden, cases_of, reference_dir
from .s3_server import S3Server
from .tiered_goldens import CheapLoads, golden_parts, slabs_for
from .waiting import ManualClock

_MODEL = "small-dense"
_GIB = 2**30


@cache
def long_cases(model: str = _MODEL) -> dict[str, Golden]:
    cases = cases_of(model).items()
    found = {name: case for name, case in cases if len(case.prompt) > PAGE_TOKENS}
    assert len(found) >= 2
    return found


@contextmanager
def node(
    device: str,
    folder: Path | None = None,
    bucket: Bucket | None = None,
    model: str = _MODEL,
    **changes: object,
) -> Iterator[Lone]:
    """Return an engine with an arena for the longest golden and little more. The host memory below
    it is twice as large. folder: folder of its disk tier. bucket: its remote store. changes: more
    settings."""
    layout = golden_parts(model, device, **changes).layout
    longest = max(len(case.prompt) + len(case.greedy) for case in long_cases(model).values())
    slabs = slabs_for(layout, longest)
    settings: dict[str, object] = {"host_cache_gib": (2 * slabs + 0.5) * layout.slab_bytes / _GIB}
    if folder is not None:
        settings["disk_cache"] = str(folder)
        settings["disk_cache_gib"] = 40 * slabs * layout.slab_bytes / _GIB
    settings |= changes
    config = engine_config(reference_dir(model), device=device, max_batch=2, **settings)
    built = build_parts(config)
    assert built.host is not None
    arena = Arena(layout, slabs, built.arena.bytes.device)
    for memory in (arena.bytes, built.host.bytes):
        memory.fill_(0xFF)
    parts = CheapLoads(**{name: getattr(built, name) for name in built.__dataclass_fields__})
    if bucket is not None:
        objects = RemoteObjects(bucket, layout)
        # A busy machine makes no lookup late.
        remote = RemoteMemory(objects, Lookups(bucket, objects, ManualClock()), 40 * slabs)
        parts = replace(parts, remote=remote)
    engine = Lone(config, parts=replace(parts, arena=arena))
    yield engine
    engine.assert_at_rest()
    engine.engine.close()


def answer_all(engine: Lone, model: str = _MODEL) -> dict[str, m.HitBreakdown]:
    """Assert each golden's answer, each after a prompt evicting the golden before. Returns the
    breakdown of cached tokens of each."""
    for number, (name, case) in enumerate(long_cases(model).items()):
        assert engine.ask(name, case.prompt, len(case.greedy)) == case.greedy, name
        push = prompt(engine.engine._cache.capacity_tokens(3) - PAGE_TOKENS, seed=number)
        engine.ask(f"push-{name}", [token % 100 for token in push], 1)
    return {name: engine.hit(name) for name in long_cases(model)}


def flip_all(folder: Path) -> None:
    """Flip a bit of each word of the disk tier's files."""
    (file,) = folder.glob("*/slabs")
    content = np.fromfile(file, np.uint64)
    (content ^ np.uint64(1 << 63)).tofile(file)


class DiskGoldens:
    device: ClassVar[str]

    def test_every_golden_comes_back_from_the_disk_of_a_node_before(self, tmp_path: Path) -> None:
        with node(self.device, tmp_path) as first:
            answer_all(first)
        with node(self.device, tmp_path) as second:
            assert all(hit.loaded["disk"] > 0 for hit in answer_all(second).values())
            assert second.stats().tiers[1].kept["restored"] > 0
        flip_all(tmp_path)
        with node(self.device, tmp_path) as third:
            hits = answer_all(third)
            assert all(hit.causes[LOAD_FAILED] > 0 for hit in hits.values())
            loads = third.stats().tiers[1].loads
            assert loads["mismatch"] >= len(hits) and loads["done"] == 0


class RemoteGoldens:
    """Tests of goldens in a remote store. The test file defines the fixture `store`."""

    device: ClassVar[str]

    def test_a_golden_is_found_where_another_node_put_it(self, store: S3Server) -> None:
        bucket = store.bucket(f"goldens-{self.device}")
        case = max(long_cases().values(), key=lambda each: len(each.prompt))
        assert len(case.prompt) > LEAST_GAIN
        for name in ("first", "second"):
            with node(self.device, bucket=bucket) as engine:
                assert engine.ask(name, case.prompt, len(case.greedy)) == case.greedy
                found = engine.hit(name).loaded
        assert found["remote"] > LEAST_GAIN
