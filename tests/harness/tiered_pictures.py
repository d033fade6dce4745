"""Engines of golden checkpoints with a tower, with tiers below a small arena."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tasuki.engine.assembly.parts import build_parts
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS
from tests.harness.engines import Lone, engine_config, prompt
from tests.harness.picture_goldens import PictureModel, golden_cases
from tests.harness.picture_prompts import golden_case
from tests.harness.tiered_goldens import CheapLoads, slabs_for

_GIB = 2**30


def long_cases(model: str) -> list[str]:
    """Return the cases longer than a page, with pictures."""
    found = [case for name, case in golden_cases() if name == model]
    values = {case: golden_case(model, case).values for case in found}
    return [
        case
        for case in found
        if len(values[case]["prompt"]) > PAGE_TOKENS + 1 and values[case]["items"]
    ]


@contextmanager
def tiered_pictures(model: str, folder: Path | None = None) -> Iterator[Lone]:
    """Yield an engine with an arena for the longest golden and little more, and host memory below.
    folder: of its disk tier; None: it has none, and more host memory."""
    values = [golden_case(model, case).values for case in long_cases(model)]
    longest = max(len(each["prompt"]) + len(each["greedy"]) for each in values)
    at = PictureModel.load(model).folder
    layout = build_parts(engine_config(at)).layout
    slabs = slabs_for(layout, longest)
    below = 2 * slabs if folder is not None else 40 * slabs
    settings: dict[str, object] = {"host_cache_gib": (below + 0.5) * layout.slab_bytes / _GIB}
    if folder is not None:
        settings["disk_cache"] = str(folder)
        settings["disk_cache_gib"] = 60 * slabs * layout.slab_bytes / _GIB
    config = engine_config(at, max_batch=2, **settings)
    built = build_parts(config)
    assert built.host is not None
    arena = Arena(layout, slabs)
    for memory in (arena.bytes, built.host.bytes):
        memory.fill_(0xFF)
    parts = CheapLoads(**{name: getattr(built, name) for name in built.__dataclass_fields__})
    engine = Lone(config, parts=replace(parts, arena=arena))
    try:
        yield engine
        engine.assert_at_rest()
    finally:
        engine.engine.close()


def push_out(engine: Lone, name: str) -> None:
    """Fill the arena with a text, so earlier prefixes are in lower tiers only."""
    tokens = engine.engine._cache.capacity_tokens(3) - PAGE_TOKENS
    engine.ask(name, [token % 100 for token in prompt(tokens, seed=len(name))], 1)
