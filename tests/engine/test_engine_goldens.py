"""The engine's goldens on the CPU, and one prompt not repeated on the GPU."""

import numpy as np
import pytest

from tasuki.engine.messages import HitBreakdown
from tests.harness.engine_goldens import EngineGoldens, cold_engine
from tests.harness.engines import submit
from tests.harness.goldens import QUANTISED, cases_of


class TestGoldensOnTheCpu(EngineGoldens):
    device = "cpu"


@pytest.mark.parametrize("model", QUANTISED)
def test_quantised_checkpoints_answer_as_their_dequantised_weights(model: str) -> None:
    engine = cold_engine(model, "cpu", prefill_chunk_tokens=64)
    cases = cases_of(model)
    for name, case in cases.items():
        engine.post(submit(name, case.prompt, len(case.greedy)))
    engine.run()
    for name, case in cases.items():
        assert engine.tokens(name) == case.greedy, name
    # Its prompt is cached now, whole pages of it.
    name, case = max(cases.items(), key=lambda item: len(item[1].prompt))
    assert engine.ask("again", case.prompt, len(case.greedy)) == case.greedy
    assert engine.hit("again").usable_tokens >= len(case.prompt) - 65
    engine.assert_at_rest()


def test_resumed_inside_a_long_prompt_that_another_left() -> None:
    """A prompt is long if its KV takes more than a state: one golden. The engine learns at which
    point prompts leave a document. It keeps a state there when it first computes the next one. A
    golden that leaves it too resumes there with equal tokens."""
    model = "small-dense"
    case = cases_of(model)["turn2"]
    left = len(case.prompt) - 100
    engine = cold_engine(model, "cpu")
    random = np.random.default_rng(5)

    def ask(name: str, tokens: list[int], count: int) -> HitBreakdown:
        engine.ask(name, tokens, count)
        return engine.hit(name)

    for document in range(3):
        shared = random.integers(1, 300, left).tolist()
        for asked in range(2):
            question = random.integers(1, 300, 100).tolist()
            ask(f"{document}.{asked}", shared + question, 1)
    other = random.integers(1, 300, 100).tolist()
    ask("first", case.prompt[:left] + other, 1)
    hit = ask("golden", case.prompt, len(case.greedy))
    assert hit.checkpoint_source == "interior"
    assert 0 < hit.usable_tokens <= left
    assert engine.tokens("golden") == case.greedy
    engine.assert_at_rest()
