"""Tests: an engine with a very small arena gives every golden's answer, with each prefix loaded
from a lower tier. One body for every device: a test file names its device in a subclass of
TieredGoldens."""

from functools import cache
from typing import ClassVar

import pytest

from tasuki.engine.assembly.parts import EngineParts, build_parts
from tasuki.engine.tiers.host_memory import arena_below
from tasuki.engine.tiers.tier import TierPrices
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

from .engines import Lone, engine_config, prompt
from .goldens import OWN_MODELS, cases_of, reference_dir


def slabs_for(layout: CacheLayout, tokens: int) -> int:
    """Return the number of slabs for one prompt of `tokens` tokens, its working slots and a few
    states, and no more."""
    return -(-tokens // (layout.pages_per_slab * PAGE_TOKENS)) + 5


@cache
def golden_parts(model: str, device: str, **changes: object) -> EngineParts:
    return build_parts(engine_config(reference_dir(model), device=device, **changes))


class CheapLoads(EngineParts):
    """Engine parts with very low load prices, so even a golden's short prompts are loaded on every
    device."""

    @property
    def tier_prices(self) -> list[TierPrices]:
        return [TierPrices(1.0, 0.1, 0.1, 1e-6) for _ in super().tier_prices]


def tiered_engine(model: str, device: str, **changes: object) -> Lone:
    """Return an engine with an arena for the longest golden and little more."""
    parts = golden_parts(model, device, **changes)
    longest = max(len(case.prompt) + len(case.greedy) for case in cases_of(model).values())
    arena = Arena(parts.layout, slabs_for(parts.layout, longest), parts.arena.bytes.device)
    arena.bytes.fill_(0xFF)
    host = arena_below(parts.layout, 40 * arena.slabs, device)
    host.bytes.fill_(0xFF)
    held = {name: getattr(parts, name) for name in parts.__dataclass_fields__}
    cheap = CheapLoads(**held | {"arena": arena, "host": host})
    config = engine_config(reference_dir(model), device=device, max_batch=2, **changes)
    return Lone(config, parts=cheap)


class TieredGoldens:
    device: ClassVar[str]

    @pytest.mark.parametrize("model", OWN_MODELS)
    def test_every_golden_comes_back_from_below(self, model: str) -> None:
        come_back_from_below(model, self.device)


def come_back_from_below(model: str, device: str, **changes: object) -> None:
    """Assert the answer of each golden longer than a page, twice, with pages and states loaded from
    host memory the second time. changes: settings of the engine."""
    engine = tiered_engine(model, device, **changes)
    cases = {name: case for name, case in cases_of(model).items() if len(case.prompt) > PAGE_TOKENS}
    assert len(cases) >= 2
    for turn in range(2):
        for name, case in cases.items():
            answer = engine.ask(f"{name}-{turn}", case.prompt, len(case.greedy))
            assert answer == case.greedy, (name, turn)
            # The next golden must not find its prefix in the arena.
            push = prompt(engine.engine._cache.capacity_tokens(3) - PAGE_TOKENS, seed=turn)
            engine.ask(f"push-{name}-{turn}", [token % 100 for token in push], 1)
    assert all(engine.hit(f"{name}-1").loaded for name in cases)
    assert engine.engine.computed_behind_loads >= len(cases)
    engine.assert_at_rest()
    engine.engine.close()
