"""Answers of a node whose arena is so small that turns are loaded: every golden, and conversations
beside each other, as on a node without tiers."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.build import EngineParts, build_parts
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tests.harness.engines import Lone, engine_config, host_below, prompt, submit, tiny_engine
from tests.harness.goldens import OWN_MODELS, cases_of, reference_dir
from tests.harness.tiers import Fault, TieredEngine

TURNS = 200


def slabs_for(layout: CacheLayout, tokens: int) -> int:
    """Room for one prompt of so many tokens, its working slots and a few states, and no more."""
    return -(-tokens // (layout.pages_per_slab * PAGE_TOKENS)) + 5


@cache
def golden_parts(model: str) -> EngineParts:
    return build_parts(engine_config(reference_dir(model)))


def tiered_engine(model: str) -> Lone:
    """Over an arena that holds the longest golden and little more."""
    parts = golden_parts(model)
    longest = max(len(case.prompt) + len(case.greedy) for case in cases_of(model).values())
    arena = Arena(parts.layout, slabs_for(parts.layout, longest))
    arena.bytes.fill_(0xFF)
    parts = replace(parts, arena=arena, host=host_below(parts.layout, 40 * arena.slabs))
    return Lone(engine_config(reference_dir(model)), parts=parts)


@pytest.mark.parametrize("model", OWN_MODELS)
def test_every_golden_comes_back_from_below(model: str) -> None:
    engine = tiered_engine(model)
    cases = {name: case for name, case in cases_of(model).items() if len(case.prompt) > PAGE_TOKENS}
    assert len(cases) >= 2
    for turn in range(2):
        for name, case in cases.items():
            answer = engine.ask(f"{name}-{turn}", case.prompt, len(case.greedy))
            assert answer == case.greedy, (name, turn)
            # The next one's are not to find it in the arena.
            push = prompt(engine.engine._cache.capacity_tokens(3) - PAGE_TOKENS, seed=turn)
            engine.ask(f"push-{name}-{turn}", [token % 100 for token in push], 1)
    assert all(engine.hit(f"{name}-1").loaded for name in cases)
    engine.assert_at_rest()
    engine.engine.close()


def conversations(seed: int) -> list[tuple[str, list[int], bytes, int]]:
    """TURNS of twelve conversations in turns, some of which begin alike: name, prompt, salt, tokens
    to be answered. Each goes on behind what it had."""
    random = np.random.default_rng(seed)
    shared = [random.integers(0, 128, 200).tolist() for _ in range(3)]
    logs = [list(shared[number % 3]) for number in range(12)]
    asked = []
    for turn in range(TURNS):
        number = int(random.integers(len(logs)))
        logs[number] += random.integers(0, 128, int(random.integers(5, 60))).tolist()
        if len(logs[number]) > 600:
            logs[number] = list(shared[number % 3])
        salt = b"tenant" if number % 4 == 0 else b""
        asked.append((f"t{turn}", list(logs[number]), salt, int(random.integers(1, 5))))
    return asked


def play(engine: Lone, asked: list[tuple[str, list[int], bytes, int]]) -> None:
    """Four at a time, of which some are aborted on their way."""
    for first in range(0, len(asked), 4):
        for name, tokens, salt, count in asked[first : first + 4]:
            engine.post(submit(name, tokens, count, salt=salt))
        if first % 40 == 0:
            engine.steps(2)
            engine.post(m.Abort(m.RequestId(asked[first][0])))
        engine.run()


def compare(one: Lone, other: Lone, names: list[str]) -> None:
    """Tokens and how likely each was: of what both answered whole."""
    said = [
        {
            name: [item for item in engine.all_said(m.TokenOut) if item.request_id == name]
            for name in names
        }
        for engine in (one, other)
    ]
    for name in names:
        got, wanted = (of_engine[name] for of_engine in said)
        count = min(len(got), len(wanted))
        assert [item.token for item in got[:count]] == [item.token for item in wanted[:count]], name
        chances = [[item.logprob for item in items[:count]] for items in (got, wanted)]
        assert np.allclose(*chances, atol=1e-3), name


@pytest.mark.parametrize("faulty", [False, True])
def test_mixed_turns_are_answered_as_without_a_tier(faulty: bool) -> None:
    asked = conversations(seed=7)
    plain = tiny_engine(slabs=600)
    play(plain, asked)
    tiered = TieredEngine(slabs=34, host_slabs=260)
    random = np.random.default_rng(11)

    def fault(name: str) -> Fault | None:
        return list(Fault)[random.integers(len(Fault))] if random.random() < 0.1 else None

    if faulty:
        tiered.copies.fault = fault
    play(tiered.lone, asked)
    compare(tiered.lone, plain, [name for name, *_ in asked])
    for name, *_ in asked:
        ends = [end for end in tiered.lone.all_said(m.Finished) if end.request_id == name]
        for end in ends:
            hit = end.usage.hit
            assert hit is None or hit.usable_tokens + sum(hit.causes.values()) == hit.prompt_tokens
    report = tiered.report
    # Faulty or not, most turns' beginnings had left the arena.
    assert report.loads["done"] > TURNS // 8
    if faulty:
        assert report.loads["mismatch"] > 0 and report.loads["broken"] > 0
    tiered.lone.assert_at_rest()
    tiered.close()
