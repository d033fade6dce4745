"""Every golden with itself as its prediction, whole and broken at random places, new in each run.
The answer has the golden's tokens and the right number of accepted drafts."""

import numpy as np

from tests.harness.covering import every_value
from tests.harness.engine_goldens import cold_engine
from tests.harness.goldens import MODELS, cases_of


@every_value(
    model={model: model for model in MODELS}, most={f"{most}-drafts": most for most in (1, 2, 3, 4)}
)
def test_a_golden_drafted_from_itself_is_the_golden(model: str, most: int, fresh_seed: int) -> None:
    generator = np.random.default_rng(fresh_seed)
    engine = cold_engine(model, "cpu", prefill_chunk_tokens=64, draft_tokens=most)
    for name, case in cases_of(model).items():
        prediction = np.array(case.greedy, dtype=np.int32)
        new = len(case.greedy)
        whole = engine.ask(name, case.prompt, new, prediction=prediction)
        assert whole == case.greedy
        usage = engine.finished(name).usage
        assert usage.accepted_tokens == usage.drafted_tokens > 0
        # A step samples one token after its drafts, so this place is drafted, not sampled.
        first = 1 + (most + 1) * generator.integers(0, (new - 2) // (most + 1))
        prediction[np.unique([first, *generator.integers(first, new, 2)])] ^= 1
        again = f"{name} broken"
        assert engine.ask(again, case.prompt, new, prediction=prediction) == case.greedy
        usage = engine.finished(again).usage
        assert usage.accepted_prediction_tokens == usage.accepted_tokens
        assert usage.accepted_tokens < usage.drafted_tokens
    engine.assert_at_rest()
