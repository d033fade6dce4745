"""Tests of goldens on several ranks with very small arenas: every prefix is loaded from a lower
tier."""

import json
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

from tasuki.engine import messages as m
from tests.harness.engines import Lone, prompt
from tests.harness.goldens import reference_dir
from tests.harness.qwen35 import load_config
from tests.harness.rank_engines import rank_engine

_MODEL = "tp4-dense"
_MIB = 8
_LONG = 100


def tiered(
    folder: Path | None = None, ranks: int = 2, **more: object
) -> AbstractContextManager[Lone]:
    """Return an engine with memory tiers below its arena. folder: folder of the disk tier; None: no
    disk tier. ranks: number of ranks."""
    below = {} if folder is None else {"disk_cache": str(folder), "disk_cache_gib": 0.12}
    settings = {"tensor_parallel": ranks, "arena_mib": _MIB, "host_cache_gib": 0.06}
    return rank_engine(reference_dir(_MODEL), **settings | below | more)


@cache
def long_cases() -> dict[str, tuple[list[int], list[int]]]:
    """Return the prompt and the greedy tokens of each long golden, by name."""
    document = json.loads((reference_dir(_MODEL) / "golden.json").read_text())
    return {
        case["name"]: (case["prompt"], case["greedy"])
        for case in document["cases"]
        if len(case["prompt"]) > _LONG
    }


def asked(engine: Lone, turn: str) -> dict[str, m.HitBreakdown]:
    """Assert the answer to every golden. A prompt evicting the golden follows each answer. Returns
    the breakdown of cached tokens by golden. turn: makes the request ids unique."""
    vocab = load_config(reference_dir(_MODEL)).vocab
    for name, (tokens, greedy) in long_cases().items():
        assert engine.ask(f"{name}-{turn}", tokens, len(greedy)) == greedy, (name, turn)
        length = engine.engine._cache.capacity_tokens(3) - 64
        push = [3 + token % (vocab - 3) for token in prompt(length, seed=len(name))]
        engine.ask(f"push-{name}-{turn}", push, 1)
    return {name: engine.hit(f"{name}-{turn}") for name in long_cases()}


def goldens_come_back(**more: object) -> None:
    with tiered(**more) as engine:  # type: ignore[arg-type]
        asked(engine, "first")
        hits = asked(engine, "second")
        assert all(hit.loaded.get("host", 0) > 0 for hit in hits.values()), hits
        host = engine.stats().tiers[0]
        assert host.loads["done"] >= len(long_cases()) > 0 and host.writes["done"] > 0
        engine.assert_at_rest()
        engine.engine.close()


def goldens_come_back_from_disks(folder: Path, **more: object) -> None:
    """Check the goldens' caches: a new node restores them from the disks of an earlier node's
    ranks."""
    for turn in ("first", "again"):
        with tiered(folder, **more) as engine:  # type: ignore[arg-type]
            hits = asked(engine, turn)
            restored = engine.stats().tiers[1].kept["restored"]
            ended(engine)
    assert restored >= len(long_cases())
    assert all(hit.loaded.get("disk", 0) > 0 for hit in hits.values()), hits


def ended(engine: Lone) -> None:
    engine.run()
    engine.assert_at_rest()
    engine.engine.close()
