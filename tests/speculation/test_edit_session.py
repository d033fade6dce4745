"""An agent rewrites a file with changes. Its prompt and earlier cached text contain most of it.

The sampled tokens are dictated, so the answer is the edited file. Forwards, tree and memory are
real.
"""

from collections.abc import Sequence
from random import Random

import numpy as np
import pytest

from tasuki.engine.runner import cpu_runner
from tasuki.model.drafts import DraftStart
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import Sampled
from tests.harness.covering import slow_behind
from tests.harness.engines import Lone, engine_config, prompt, submit, tiny_engine
from tests.harness.goldens import reference_dir

FILE = prompt(400, seed=21)
ASK = prompt(40, seed=22)


def edited(file: Sequence[int], changes: int) -> list[int]:
    """Return the file with `changes` places changed: another token, one more or one less."""
    generator, made = Random(changes), list(file)
    for place in sorted(generator.sample(range(20, len(file) - 20), changes), reverse=True):
        made[place : place + generator.randrange(3)] = [generator.randrange(128)]
    return made


def dictate(monkeypatch: pytest.MonkeyPatch, answer: Sequence[int], behind: int) -> None:
    """Dictate the answer's tokens after a prompt of `behind` tokens."""

    def dictated(logits: object, params: Sequence[object], positions: Sequence[int], *_: object):  # type: ignore[no-untyped-def]
        return [Sampled(answer[position - behind], -1.0, 1.0) for position in positions]

    monkeypatch.setattr(cpu_runner, "sample", dictated)


def forwards(engine: Lone, tokens: Sequence[int], answer: Sequence[int], **terms: object) -> int:
    """Return the number of forwards until it has answered."""
    sampling = SamplingParams(max_new_tokens=len(answer), ignore_eos=True)
    launched = engine.engine._plans._planner
    engine.post(submit("r", tokens, len(answer), sampling=sampling, **terms))
    count = 0
    plan = launched.plan

    def counted(*args: object):  # type: ignore[no-untyped-def]
        nonlocal count
        made = plan(*args)  # type: ignore[arg-type]
        count += bool(len(made.rows))
        return made

    launched.plan = counted  # type: ignore[method-assign]
    engine.run()
    launched.plan = plan  # type: ignore[method-assign]
    assert engine.tokens("r") == list(answer)
    return count


@pytest.mark.parametrize("changes", slow_behind(1, {"5": 5, "0": 0, "12": 12}))
def test_a_file_written_anew_takes_far_fewer_steps(
    changes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens, answer = ASK + FILE + ASK, edited(FILE, changes)
    dictate(monkeypatch, answer, len(tokens))
    plain = forwards(tiny_engine(speculate="off"), tokens, answer)
    engine = tiny_engine(speculate="tree", draft_tokens=7)
    steps = forwards(engine, tokens, answer)
    assert plain >= 2.5 * steps
    usage = engine.finished("r").usage
    assert usage.accepted_tokens >= 0.8 * usage.drafted_tokens
    assert usage.accepted_prediction_tokens is None
    engine.assert_at_rest()


def test_what_another_request_left_is_found_by_those_of_its_salt_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    taken = {}
    for salt in (b"mine", b"another's"):
        engine = tiny_engine(speculate="tree", draft_tokens=7)
        dictate(monkeypatch, [1] * 3, len(FILE))
        forwards(engine, FILE, [1] * 3, salt=b"mine")
        engine.said.clear()
        dictate(monkeypatch, FILE[6:300], len(FILE[:6]))
        taken[salt] = forwards(engine, FILE[:6], FILE[6:300], salt=salt)
    assert taken[b"another's"] > 2.5 * taken[b"mine"]


def test_nothing_that_helps_costs_little(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, answer = prompt(100, seed=1), prompt(200, seed=2)
    dictate(monkeypatch, answer, len(tokens))
    engine = tiny_engine(speculate="tree", draft_tokens=7)
    forwards(engine, tokens, answer)
    assert engine.finished("r").usage.drafted_tokens <= 10


def test_a_prediction_comes_before_what_stands_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = prompt(60, seed=3)
    dictate(monkeypatch, answer, len(FILE))
    engine = tiny_engine(speculate="tree", draft_tokens=4)
    forwards(engine, FILE, answer, prediction=np.array(answer, dtype=np.int32))
    usage = engine.finished("r").usage
    assert usage.accepted_prediction_tokens == usage.accepted_tokens > 40


class Layer:
    """In the place of the model's draft layer: it expects the answer, but for every third place."""

    def __init__(self, answer: Sequence[int], behind: int) -> None:
        self._answer, self._behind = answer, behind

    def __call__(self, model: object, arena: object, starts: Sequence[DraftStart]):  # type: ignore[no-untyped-def]
        return [tuple(self._expected(start.position + 1, start.count)) for start in starts]

    def _expected(self, place: int, count: int) -> list[int]:
        places = range(place - self._behind, place - self._behind + count)
        known = [at for at in places if at < len(self._answer)]
        return [(self._answer[at] + (at % 3 == 2)) % 128 for at in known]


def test_the_layer_drafts_where_nothing_agrees_that_stands_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A file with new text in its middle: each drafter alone takes more steps than both."""
    tokens, new = ASK + FILE[:160] + ASK, prompt(80, seed=23)
    answer = FILE[:80] + new + FILE[80:160]
    dictate(monkeypatch, answer, len(tokens))
    monkeypatch.setattr(cpu_runner, "draft_tokens", Layer(answer, len(tokens)))
    model = reference_dir("small-dense")
    taken = {}
    for drafter in ("mtp", "tree", "mtp+tree"):
        config = engine_config(model, speculate=drafter, draft_tokens=7)
        engine = Lone(config)
        taken[drafter] = forwards(engine, tokens, answer)
        counts = engine.finished("r").usage
        assert counts.accepted_tokens > 80
        engine.assert_at_rest()
    assert taken["mtp+tree"] < 0.8 * min(taken["mtp"], taken["tree"])
