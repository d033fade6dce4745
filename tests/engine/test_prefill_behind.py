"""The rest of a prompt is computed while its prefix is loaded. It is discarded if the load is late,
wrong or broken."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages.reports import LOAD_FAILED
from tasuki.engine.roles import early_steps as early_step
from tasuki.engine.roles.early_steps import BehindCounts
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import alone, prompt, submit, tiny_engine
from tests.harness.tiers import Fault, TieredEngine
from tests.harness.waiting import until

PROMPT = prompt(400, seed=1)
ANSWER = alone(PROMPT, 2)
NEXT = PROMPT + ANSWER + prompt(90, seed=2)
KEPT = 401
EXPECTED = alone(NEXT, 4)


def counted(tiered: TieredEngine) -> BehindCounts:
    behind = tiered.lone.engine._behind
    assert behind is not None
    return behind.counts


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list of the layers opened to a forward behind a load."""
    found: list[int] = []
    plain = early_step._Gate.before_layer

    def before_layer(self: early_step._Gate, layer: int) -> None:
        plain(self, layer)
        found.append(layer)

    monkeypatch.setattr(early_step._Gate, "before_layer", before_layer)
    return found


def below_of(**settings: object) -> TieredEngine:
    """Return an engine that has answered PROMPT, with its state only in host memory."""
    tiered = TieredEngine(**settings)  # type: ignore[arg-type]
    tiered.lone.ask("first", PROMPT, 2)
    tiered.empty_arena()
    return tiered


@pytest.fixture
def below() -> Iterator[TieredEngine]:
    engine = below_of()
    yield engine
    end(engine)


def end(engine: TieredEngine) -> None:
    engine.copies.let_go()
    engine.lone.run()
    engine.lone.assert_at_rest()
    engine.close()


def begun(tiered: TieredEngine, passed: list[int], name: str = "next") -> None:
    """Ask for NEXT and wait. All but the last segment of its load has arrived, and the forward
    behind the load waits for that segment."""
    tiered.copies.hold("last_up")
    tiered.lone.post(submit(name, NEXT, 4))
    tiered.lone.step()
    layers = len(tiered.parts.layout.layers)
    until(lambda: len(passed) == layers - 1, passed)
    tiered.copies.await_inside("last_up")


def test_layers_are_computed_before_the_load_has_landed(
    below: TieredEngine, passed: list[int]
) -> None:
    begun(below, passed)
    below.lone.steps(5)
    assert not below.lone.tokens("next"), "nothing is drawn before all has landed"
    below.copies.let_go()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED
    assert below.lone.hit("next").loaded == {"host": KEPT}
    assert counted(below) == {"begun": 1, "busy": 0, "joined": 1, "dropped": 0}
    assert below.lone.phases("next") == ["Loading", "Prefilling", "Decoding", "Finished"]


@pytest.mark.parametrize("fault", Fault)
def test_what_was_computed_behind_a_load_that_fails_is_forgotten(
    below: TieredEngine, passed: list[int], fault: Fault
) -> None:
    below.copies.fault = lambda name: fault if name == "last_up" else None
    begun(below, passed)
    below.copies.let_go()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED
    hit = below.lone.hit("next")
    assert hit.causes[LOAD_FAILED] == KEPT and not hit.loaded
    assert counted(below) == {"begun": 1, "busy": 0, "joined": 0, "dropped": 1}
    # Nothing of it is found later.
    below.copies.fault = lambda name: None
    assert below.lone.ask("again", NEXT + EXPECTED[:1], 3) == alone(NEXT + EXPECTED[:1], 3)


@pytest.mark.parametrize("how", ["late", "aborted"])
def test_its_ids_are_nobody_s_before_copies_and_forward_have_ended(
    below: TieredEngine, passed: list[int], how: str
) -> None:
    begun(below, passed)
    if how == "late":
        below.clock.now += 3600
        below.step_until(lambda: below.is_over("next"))
        assert below.lone.tokens("next") == EXPECTED
    else:
        below.lone.post(m.Abort(m.RequestId("next")))
    assert below.report.loads[how] == 1
    stats = below.lone.stats()
    assert stats.slots["quarantined"] == 3 and stats.pages["quarantined"] > 0
    below.copies.let_go()
    below.lone.run()
    assert below.lone.stats().slots["quarantined"] == 0
    assert below.lone.ask("again", NEXT, 4) == EXPECTED


def test_the_loop_leaves_the_interpreter_to_a_forward_whose_load_has_landed(
    below: TieredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    let_go = threading.Event()
    plain = early_step.EarlySteps._compute

    def compute(self: early_step.EarlySteps, step: early_step.EarlyStep) -> None:
        assert let_go.wait(20)
        plain(self, step)

    monkeypatch.setattr(early_step.EarlySteps, "_compute", compute)
    below.lone.post(submit("next", NEXT, 4))
    below.step_until(lambda: not below.report.moving["loads"])
    began = time.monotonic()
    below.lone.steps(20)
    assert time.monotonic() - began > 0.015, "steps that do nothing wait a millisecond each"
    let_go.set()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED and counted(below)["joined"] == 1


def broken(*args: Any) -> Any:
    raise RuntimeError("broken on purpose")


def test_a_forward_that_breaks_leaves_the_load_as_it_is(
    below: TieredEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(early_step.EarlySteps, "_compute", broken)
        assert below.lone.ask("next", NEXT, 4) == EXPECTED
    assert below.lone.hit("next").loaded == {"host": KEPT}
    assert counted(below)["dropped"] == 1 and counted(below)["joined"] == 0


def test_the_end_of_the_prompt_is_kept_for_who_repeats_it(below: TieredEngine) -> None:
    assert below.lone.ask("next", NEXT, 1) == EXPECTED[:1]
    assert counted(below)["joined"] == 1
    other = NEXT[:450] + prompt(30, seed=9)
    assert below.lone.ask("other", other, 2) == alone(other, 2)
    # 448 is the last page boundary of NEXT.
    assert below.lone.hit("other").usable_tokens == 448


def test_a_long_rest_is_computed_as_far_as_a_forward_goes() -> None:
    tiered = below_of(prefill_chunk_tokens=64)
    assert tiered.lone.ask("next", NEXT, 4) == EXPECTED
    assert counted(tiered)["joined"] == 1
    end(tiered)


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.9, "seed": 5},
        {"temperature": 0.7, "seed": 6, "presence_penalty": 1.5, "frequency_penalty": 0.5},
        {"top_logprobs": 3},
        {"min_tokens": 2, "bad_words": ((EXPECTED[0],),)},
    ],
)
def test_draws_are_those_of_a_node_without_tiers(
    below: TieredEngine, changes: dict[str, Any]
) -> None:
    sampling = SamplingParams(max_new_tokens=6, ignore_eos=True, **changes)
    plain = tiny_engine(slabs=200)
    said = []
    for engine in (plain, below.lone):
        engine.ask("next", NEXT, 6, sampling=sampling)
        of_it = [item for item in engine.all_said(m.TokenOut) if item.request_id == "next"]
        said.append([(item.index, item.token, [top[0] for top in item.top]) for item in of_it])
    assert len(said[0]) == 6 and said[0] == said[1]
    assert counted(below)["joined"] == 1


def test_forks_begin_behind_what_was_computed(below: TieredEngine) -> None:
    below.lone.post(submit("next", NEXT, 3, forks=(m.Fork(m.RequestId("other"), 0),)))
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED[:3] == below.lone.tokens("other")
    assert counted(below)["joined"] == 1


def test_others_are_answered_meanwhile(below: TieredEngine, passed: list[int]) -> None:
    begun(below, passed)
    other = prompt(100, seed=8)
    below.lone.post(submit("other", other, 4))
    below.step_until(lambda: below.is_over("other"))
    assert below.lone.tokens("other") == alone(other, 4)
    below.copies.let_go()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED


def test_a_node_ends_while_it_computes_behind_a_load(
    below: TieredEngine, passed: list[int]
) -> None:
    begun(below, passed)
    behind = below.lone.engine._behind
    assert behind is not None
    behind.close()
    assert counted(below)["joined"] == 0
