"""Test requests to an engine of several ranks, on any device."""

import json

import numpy as np

from tasuki.engine import messages as m
from tasuki.model.grammar.grammar import Grammar, GrammarKind
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import Lone, submit
from tests.harness.goldens import reference_dir
from tests.harness.rank_engines import rank_engine


def as_goldens_have_it(name: str, ranks: int, expert_parallel: bool, **changes: object) -> None:
    cases = golden_cases(name)
    folder = reference_dir(name)
    with rank_engine(
        folder, tensor_parallel=ranks, expert_parallel=expert_parallel, **changes
    ) as engine:
        for case, (prompt, greedy) in cases.items():
            engine.post(submit(case, prompt, len(greedy)))
        engine.run()
        for case, (_, greedy) in cases.items():
            assert engine.tokens(case) == greedy, case
        engine.assert_at_rest()


def golden_cases(name: str) -> dict[str, tuple[list[int], list[int]]]:
    """Return a prompt and its greedy tokens for each golden case of the model `name`, by case."""
    document = json.loads((reference_dir(name) / "golden.json").read_text())
    return {case["name"]: (case["prompt"], case["greedy"]) for case in document["cases"]}


def constrained(engine: Lone) -> list[int]:
    """Return the tokens of the engine's answer to a request with a grammar."""
    grammar = Grammar(GrammarKind.REGEX, "[a-e]{3}x[0-9]{8}")
    sampling = SamplingParams(max_new_tokens=30, temperature=1.0, seed=3, grammar=grammar)
    engine.post(submit("constrained", [5, 6, 7], 0, sampling=sampling))
    for _ in range(60):
        engine.engine._grammars.wait()
        engine.step()
    assert engine.finished("constrained")
    return engine.tokens("constrained")


def play(engine: Lone, vocabulary: int) -> dict[str, list[int]]:
    """Send requests of all kinds: chunks, shared prefixes, an abort, next turns forking inside a
    page, samplers of every kind and a prediction. Returns the answers."""
    random = np.random.default_rng(3)

    def prompt(length: int) -> list[int]:
        return random.integers(3, vocabulary, length).tolist()

    first = prompt(150)
    noisy = {"max_new_tokens": 10, "ignore_eos": True, "seed": 7, "temperature": 1.0}
    samplings = {
        "hot": SamplingParams(**noisy),
        "top": SamplingParams(**noisy | {"top_k": 20, "top_p": 0.9}),
        "penalties": SamplingParams(
            **noisy | {"presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1}
        ),
        "likeliest": SamplingParams(max_new_tokens=6, ignore_eos=True, top_logprobs=3),
    }
    engine.post(submit("first", first, 9))
    for name, sampling in samplings.items():
        engine.post(submit(name, first[:128] + prompt(20), 0, sampling=sampling))
    for _ in range(6):
        engine.step()
    engine.post(submit("gone", prompt(40), 30))
    engine.steps(3)
    engine.post(m.Abort(m.RequestId("gone")))
    engine.run()
    answer = engine.tokens("first")
    turn = first + answer + prompt(20)
    for number in range(3):
        engine.post(submit(f"turn {number}", turn + prompt(1 + 30 * number), 20))
    engine.run()
    told = np.array([*answer[:5], 0, *answer[6:]], dtype=np.int32)
    engine.post(submit("predicted", first, 9, prediction=told))
    engine.run()
    engine.assert_at_rest()
    names = ["first", *samplings, *(f"turn {number}" for number in range(3)), "predicted"]
    return {name: engine.tokens(name) for name in names}
