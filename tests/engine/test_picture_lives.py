"""Every greedy token of goldens with pictures through the lives of a request: retracted, forked,
aborted at any moment, loaded from lower tiers, and after a restart from disk."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from tasuki.engine import messages as m
from tasuki.engine.request import Active, Encoding
from tests.harness.covering import slow_behind
from tests.harness.engines import Lone
from tests.harness.picture_goldens import NAMES, golden_cases, needs_goldens
from tests.harness.picture_prompts import ask, golden_case, golden_submit, picture_engine
from tests.harness.tiered_pictures import long_cases, push_out, tiered_pictures
from tests.harness.tiny_pictures import assert_idle, encoder

pytestmark = needs_goldens


def first_of_each_set(first: str) -> list[object]:
    """Return (model, case) of all goldens. The case `first` of each set has no slow mark."""
    cases = {f"{model}-{case}": (model, case) for model, case in golden_cases()}
    ordered = dict(sorted(cases.items(), key=lambda named: named[1][1] != first))
    return slow_behind(sum(case == first for _, case in cases.values()), ordered)


def few_cases_quick() -> list[object]:
    """Return (set, number of its cases): few of the first one, and with the slow mark all."""
    whole = [pytest.param(name, None, marks=pytest.mark.slow) for name in NAMES]
    return [(NAMES[0], 3), *whole]


def greedy(model: str, case: str) -> list[int]:
    found: list[int] = golden_case(model, case).values["greedy"]
    return found


def assert_over(engine: Lone) -> None:
    engine.assert_at_rest()
    assert_idle(engine)


def slow_clock(engine: Lone) -> None:
    """Make each reading of the encoder's clock an hour later: one block a step."""
    now = iter(range(0, 10**9, 3600))
    encoder(engine)._clock = lambda: float(next(now))


@pytest.mark.parametrize(("model", "case"), first_of_each_set("two"))
def test_retracted_again_and_again(model: str, case: str) -> None:
    """The request's memory is taken back after ever more steps, in each of its states. The rows are
    gone too."""
    engine = picture_engine(model, prefill_chunk_tokens=64)
    slow_clock(engine)
    engine.post(golden_submit(model, case))
    retracted: set[str] = set()
    for steps in range(2, 100):
        engine.steps(steps)
        if len(engine.tokens(case)) == len(greedy(model, case)):
            break
        for request in [*engine.engine._handover.requests]:
            if isinstance(request.state, Active):
                retracted.add(type(request.state).__name__)
                engine.engine._scheduler._retract(request)
        encoder(engine).store.clear()
    engine.run()
    assert engine.tokens(case) == greedy(model, case)
    assert "Decoding" in retracted and retracted & {"Encoding", "Prefilling"}
    assert_over(engine)


@pytest.mark.parametrize(("model", "case"), first_of_each_set("middle"))
def test_several_answers_share_one_prompt(model: str, case: str) -> None:
    engine = picture_engine(model, prefill_chunk_tokens=64)
    forks = tuple(m.Fork(m.RequestId(f"fork {number}"), number) for number in range(3))
    message = golden_submit(model, case, forks=forks)
    ask(engine, message)
    for name in (case, *(fork.request_id for fork in forks)):
        assert engine.tokens(name) == greedy(model, case), name
    assert encoder(engine).counts.encoded == len({one.digest for one in message.pictures})
    assert_over(engine)


@pytest.mark.parametrize(("model", "case"), first_of_each_set("middle"))
def test_aborted_at_each_moment(model: str, case: str) -> None:
    """While it waits, is encoded, computed and answered: nothing stays, and the next is right."""
    engine = picture_engine(model, prefill_chunk_tokens=64)
    slow_clock(engine)
    seen: Counter[str] = Counter()
    for steps in range(100):
        if seen["Decoding"] == 3:
            break
        name = f"after {steps}"
        engine.flush()
        engine.post(golden_submit(model, case, name))
        engine.steps(steps)
        seen.update(type(request.state).__name__ for request in engine.engine._handover.requests)
        engine.post(m.Abort(m.RequestId(name)))
        engine.run()
        assert_over(engine)
        encoder(engine).store.clear()
        assert encoder(engine).store.nbytes == 0
    # A tower of one block is never seen at work.
    encodes = golden_submit(model, case).pictures and encoder(engine)._tower.config.depth > 1
    assert set(seen) >= {"Waiting", "Decoding", *(["Encoding"] if encodes else [])}
    assert ask(engine, golden_submit(model, case)) == greedy(model, case)


@pytest.mark.parametrize(("model", "case"), first_of_each_set("middle"))
def test_without_drafts(model: str, case: str) -> None:
    engine = picture_engine(model, prefill_chunk_tokens=64, speculate="off")
    assert ask(engine, golden_submit(model, case)) == greedy(model, case)
    assert_over(engine)


def ask_again(engine: Lone, model: str, case: str, name: str) -> m.HitBreakdown:
    """Ask with no rows kept. Assert the answer, and encodes of exactly the pictures that end behind
    the hit."""
    encoder(engine).store.clear()
    before = encoder(engine).counts.encoded
    message = golden_submit(model, case, name)
    assert ask(engine, message) == greedy(model, case), name
    hit = engine.hit(name)
    left = {one.digest for one in message.pictures if one.run.end > hit.usable_tokens}
    assert encoder(engine).counts.encoded - before == len(left), name
    return hit


@pytest.mark.parametrize(("model", "count"), few_cases_quick())
def test_pictures_come_back_from_host_memory(model: str, count: int | None) -> None:
    with tiered_pictures(model) as engine:
        for turn in range(2):
            for case in long_cases(model)[:count]:
                hit = ask_again(engine, model, case, f"{case} {turn}")
                assert not turn or hit.loaded, case
                push_out(engine, f"push {case} {turn}")
        assert_idle(engine)


@pytest.mark.parametrize(("model", "count"), few_cases_quick())
def test_pictures_come_back_from_the_disk_of_a_node_before(
    model: str, count: int | None, tmp_path: Path
) -> None:
    cases = long_cases(model)[:count]
    with tiered_pictures(model, tmp_path) as first:
        for case in cases:
            ask_again(first, model, case, case)
            push_out(first, f"push {case}")
    with tiered_pictures(model, tmp_path) as second:
        hits = [ask_again(second, model, case, case) for case in cases]
        # Later ones may find a part already brought by others.
        assert hits[0].loaded["disk"] > 0 and all(hit.usable_tokens for hit in hits)
        whole = [{one.digest for one in golden_submit(model, case).pictures} for case in cases]
        assert encoder(second).counts.encoded < sum(map(len, whole))
        assert second.stats().tiers[1].kept["restored"] > 0


def question(name: str, seed: int) -> m.Submit:
    """Return the golden prompt `middle` with another text behind its picture."""
    message = golden_submit(NAMES[0], "middle", name)
    changed = message.prompt.copy()
    (picture,) = message.pictures
    changed[picture.run.end + 3 : -4] = 97 + seed
    return replace(message, prompt=changed)


def test_another_question_resumes_behind_a_picture_that_was_loaded(tmp_path: Path) -> None:
    """The state behind the picture has a page of its own, in each tier."""
    (picture,) = golden_submit(NAMES[0], "middle").pictures
    with tiered_pictures(NAMES[0], tmp_path) as first:
        ask(first, question("one", 1))
        push_out(first, "push")
        encoder(first).store.clear()
        ask(first, question("two", 2))
        assert first.hit("two").usable_tokens == picture.run.end + 1
        assert first.hit("two").loaded and encoder(first).counts.encoded == 1
        push_out(first, "push again")
    with tiered_pictures(NAMES[0], tmp_path) as second:
        answer = ask(second, question("three", 3))
        assert second.hit("three").usable_tokens == picture.run.end + 1
        assert second.hit("three").loaded["disk"] > 0
        assert encoder(second).counts.encoded == encoder(second).counts.decoded == 0
    assert answer == ask(picture_engine(NAMES[0]), question("three", 3))


def test_an_encoding_request_is_among_the_lives() -> None:
    """Without this the lives above might pass the encoder by."""
    engine = picture_engine(NAMES[0])
    slow_clock(engine)
    engine.post(golden_submit(NAMES[0], "middle"))
    engine.steps(2)
    (request,) = engine.engine._handover.requests
    assert isinstance(request.state, Encoding)
    engine.run()
