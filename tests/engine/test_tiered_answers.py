"""Answers of a node with so small an arena that turns are loaded. Every golden, and simultaneous
conversations, equal those of a node without tiers."""

import numpy as np
import pytest

from tasuki.engine import messages as m
from tests.harness.engines import Lone, submit, tiny_engine
from tests.harness.tiered_goldens import TieredGoldens
from tests.harness.tiers import Fault, TieredEngine

TURNS = 200


class TestGoldensFromBelow(TieredGoldens):
    device = "cpu"


def conversations(seed: int) -> list[tuple[str, list[int], bytes, int]]:
    """Return TURNS turns of twelve conversations, some with a shared prefix: name, prompt, salt,
    tokens to answer. Each turn extends its conversation."""
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
    """Run four requests at a time; some are aborted."""
    for first in range(0, len(asked), 4):
        for name, tokens, salt, count in asked[first : first + 4]:
            engine.post(submit(name, tokens, count, salt=salt))
        if first % 40 == 0:
            engine.steps(2)
            engine.post(m.Abort(m.RequestId(asked[first][0])))
        engine.run()


def compare(one: Lone, other: Lone, names: list[str]) -> None:
    """Compare the tokens and their likelihoods of all answers complete in both engines."""
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


ASKED = conversations(seed=7)


@pytest.fixture(scope="module")
def plain() -> Lone:
    """Return the answers of a node without tiers."""
    engine = tiny_engine(slabs=600)
    play(engine, ASKED)
    return engine


@pytest.mark.parametrize("faulty", [False, True])
def test_mixed_turns_are_answered_as_without_a_tier(faulty: bool, plain: Lone) -> None:
    tiered = TieredEngine(slabs=34, host_slabs=260)
    random = np.random.default_rng(11)

    def fault(name: str) -> Fault | None:
        return list(Fault)[random.integers(len(Fault))] if random.random() < 0.1 else None

    if faulty:
        tiered.copies.fault = fault
    play(tiered.lone, ASKED)
    compare(tiered.lone, plain, [name for name, *_ in ASKED])
    for name, *_ in ASKED:
        ends = [end for end in tiered.lone.all_said(m.Finished) if end.request_id == name]
        for end in ends:
            hit = end.usage.hit
            assert hit is None or hit.usable_tokens + sum(hit.causes.values()) == hit.prompt_tokens
    report = tiered.report
    # With and without faults, most turns' prefixes had left the arena.
    assert report.loads["done"] > TURNS // 8
    if faulty:
        assert report.loads["mismatch"] > 0 and report.loads["broken"] > 0
    tiered.lone.assert_at_rest()
    tiered.close()
