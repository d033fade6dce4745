"""Every greedy token of goldens with pictures through an engine on the CPU: whole, chunked, resumed
inside and behind pictures, in sessions, with drafts."""

from collections.abc import Callable, Sequence

import pytest

from tasuki.engine import messages as m
from tasuki.engine.request import Active
from tasuki.engine.scheduling import scheduler as scheduling
from tasuki.engine.scheduling.scheduler import Demand
from tests.harness.covering import slow_behind
from tests.harness.engines import Lone
from tests.harness.picture_goldens import golden_cases, needs_goldens
from tests.harness.picture_prompts import ask, golden_case, golden_submit, picture_engine
from tests.harness.tiny_pictures import assert_idle, encoder

pytestmark = needs_goldens


def one_quick_case_a_set(first: str) -> list[object]:
    """Return (model, case) of all goldens. The case `first` of each set has no slow mark."""
    cases = {f"{model}-{case}": (model, case) for model, case in golden_cases()}
    ordered = dict(sorted(cases.items(), key=lambda named: named[1][1] != first))
    return slow_behind(sum(case == first for _, case in cases.values()), ordered)


def greedy(model: str, case: str) -> list[int]:
    return golden_case(model, case).values["greedy"]


@pytest.fixture
def cut_at(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Return a function that makes each chunk of a prompt as long as asked for."""

    def cut(tokens: int) -> None:
        def share(demands: Sequence[Demand], *_: object) -> list[int]:
            return [min(demand.length, demand.start + tokens) for demand in demands]

        monkeypatch.setattr(scheduling, "share_chunk", share)

    return cut


def assert_over(engine: Lone) -> None:
    engine.assert_at_rest()
    assert_idle(engine)


@pytest.mark.parametrize(("model", "case"), one_quick_case_a_set("video"))
def test_whole_prompts(model: str, case: str) -> None:
    engine = picture_engine(model)
    assert ask(engine, golden_submit(model, case)) == greedy(model, case)
    pictures = golden_submit(model, case).pictures
    assert encoder(engine).counts.encoded == len({one.digest for one in pictures})
    assert_over(engine)


@pytest.mark.parametrize(("model", "case"), one_quick_case_a_set("middle"))
@pytest.mark.parametrize("tokens", [64, 37])
def test_chunks(model: str, case: str, tokens: int, cut_at: Callable[[int], None]) -> None:
    cut_at(tokens)
    engine = picture_engine(model)
    assert ask(engine, golden_submit(model, case)) == greedy(model, case)
    assert_over(engine)


@pytest.mark.parametrize(("model", "case"), one_quick_case_a_set("two"))
def test_resumed_at_each_place_of_a_stopped_prefill(
    model: str, case: str, cut_at: Callable[[int], None]
) -> None:
    """A request is aborted behind each of its chunks, which end inside and behind pictures. The
    next one resumes at that very token."""
    cut_at(5)
    engine = picture_engine(model)
    message = golden_submit(model, case)
    places, place = [], 0
    while True:
        name = f"to-{place}"
        engine.post(golden_submit(model, case, name))
        before = place
        while not engine.tokens(name) and place == before:
            engine.step()
            for request in engine.engine._handover.requests:
                if isinstance(request.state, Active):
                    place = max(place, request.state.progress.num_computed)
        engine.post(m.Abort(m.RequestId(name)))
        engine.run()
        if place == before:
            break
        places.append(place)
        engine.said.clear()
    assert ask(engine, message) == greedy(model, case)
    assert engine.hit(case).usable_tokens >= max(at for at in places if at < len(message.prompt))
    inside = [at for at in places for one in message.pictures if one.start < at < one.run.end]
    assert inside or all(one.run.tokens <= 5 for one in message.pictures)
    assert_over(engine)


@pytest.mark.parametrize(("model", "case"), one_quick_case_a_set("middle"))
def test_a_repeat_encodes_nothing_behind_its_pictures(model: str, case: str) -> None:
    engine = picture_engine(model)
    assert ask(engine, golden_submit(model, case, "first")) == greedy(model, case)
    encoder(engine).store.clear()
    before = encoder(engine).counts.encoded
    message = golden_submit(model, case)
    assert ask(engine, message) == greedy(model, case)
    usable = engine.hit(case).usable_tokens
    left = {one.digest for one in message.pictures if one.run.end > usable}
    assert encoder(engine).counts.encoded - before == len(left)
    assert_over(engine)


@pytest.mark.parametrize(
    "model", sorted({model for model, case in golden_cases() if case == "turn2"}) or ["none"]
)
def test_a_session_resumes_at_exact_turn_ends(model: str) -> None:
    cases = [case for name, case in golden_cases() if name == model and case.startswith("turn")]
    engine = picture_engine(model)
    before = golden_submit(model, "middle")
    assert ask(engine, before) == greedy(model, "middle")
    ended = len(before.prompt) + len(greedy(model, "middle")) - 1
    seen = {one.digest for one in before.pictures}
    for case in sorted(cases):
        encoder(engine).store.clear()
        encoded = encoder(engine).counts.encoded
        message = golden_submit(model, case)
        assert ask(engine, message) == greedy(model, case)
        assert engine.hit(case).usable_tokens == ended
        new = {one.digest for one in message.pictures} - seen
        assert encoder(engine).counts.encoded - encoded == len(new)
        seen |= new
        ended = len(message.prompt) + len(greedy(model, case)) - 1
    assert_over(engine)


@pytest.mark.parametrize(("model", "case"), one_quick_case_a_set("middle"))
def test_drafts_change_no_token(model: str, case: str) -> None:
    # One of the sets has no draft layer.
    source = "tree" if model == "vision-dense-d128" else "mtp+tree"
    engine = picture_engine(model, speculate=source, prefill_chunk_tokens=64)
    assert ask(engine, golden_submit(model, case)) == greedy(model, case)
    assert_over(engine)
