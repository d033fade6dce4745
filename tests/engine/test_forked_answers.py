"""Several answers to one prompt. The prompt is computed once, and each answer is equal to one
computed alone."""

import gc
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.forward_stream import PlanStream
from tasuki.engine.request import Request
from tasuki.engine.scheduling.scheduled_forward import ScheduledForward
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.covering import every_value
from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import Lone, alone, prompt, submit, tiny_engine, tiny_parts

DRAWN = SamplingParams(max_new_tokens=12, ignore_eos=True, temperature=30.0, seed=100)
PENALIZED = replace(
    DRAWN,
    presence_penalty=1.5,
    frequency_penalty=1.0,
    repetition_penalty=1.3,
    min_tokens=4,
    bad_words=((3, 4), (5,)),
    top_logprobs=3,
)
SAMPLINGS = {"drawn": DRAWN, "penalized": PENALIZED}
CHOICES = 8


def forked(
    name: str, tokens: list[int], sampling: SamplingParams, choices: int = CHOICES, **more: object
) -> m.Submit:
    forks = tuple(
        m.Fork(m.RequestId(f"{name}-{place}"), sampling.seed + place) for place in range(1, choices)
    )
    return submit(name, tokens, 0, sampling=sampling, forks=forks, **more)


def names(name: str, choices: int = CHOICES) -> list[str]:
    return [name, *(f"{name}-{place}" for place in range(1, choices))]


def assert_each_as_alone(
    engine: Lone, name: str, tokens: list[int], sampling: SamplingParams, choices: int = CHOICES
) -> None:
    for place, choice in enumerate(names(name, choices)):
        own = replace(sampling, seed=sampling.seed + place)
        assert engine.tokens(choice) == alone(tokens, 0, sampling=own), choice


@pytest.fixture
def forwarded(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return a list of the tokens of each forward."""
    counts: list[int] = []
    launch = PlanStream.launch

    def counting(self: PlanStream, scheduled: ScheduledForward) -> object:
        counts.append(len(scheduled.answers) + sum(i.stop - i.start for i in scheduled.prompts))
        return launch(self, scheduled)

    monkeypatch.setattr(PlanStream, "launch", counting)
    yield counts


def test_a_long_prompt_is_forwarded_once_for_all_choices(forwarded: list[int]) -> None:
    engine = tiny_engine(arena_mib=24)
    engine.post(forked("r", prompt(2000), replace(DRAWN, max_new_tokens=1)))
    engine.run()
    assert sum(forwarded) == 1999 + CHOICES
    assert all(len(engine.tokens(name)) == 1 for name in names("r"))
    engine.assert_at_rest()


@every_value(
    sampling=SAMPLINGS, length={str(length): length for length in (1, 2, 64, 65, 66, 129, 300)}
)
def test_each_choice_is_answered_as_alone_with_its_own_seed(
    length: int, sampling: SamplingParams
) -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    tokens = prompt(length)
    engine.post(forked("r", tokens, sampling, 3))
    engine.run()
    assert_each_as_alone(engine, "r", tokens, sampling, 3)
    if length > 3:
        assert len({tuple(engine.tokens(name)) for name in names("r", 3)}) == 3
    for name in names("r", 3):
        ended = engine.finished(name)
        assert ended.reason is m.FinishReason.LENGTH
        assert (ended.usage.prompt_tokens, ended.usage.completion_tokens) == (length, 12)
        hit = engine.hit(name)
        assert hit.prompt_tokens == length == hit.usable_tokens + sum(hit.causes.values())
    engine.assert_at_rest()


def test_what_was_cached_before_is_told_and_not_what_the_forks_share() -> None:
    engine = tiny_engine()
    tokens = prompt(300)
    engine.ask("before", tokens[:200], 1)
    engine.post(forked("r", tokens, DRAWN, 3))
    engine.run()
    hits = {engine.hit(name).usable_tokens for name in names("r", 3)}
    assert hits == {200}
    assert_each_as_alone(engine, "r", tokens, DRAWN, 3)


def test_a_prompt_that_is_cached_to_its_last_token_is_not_computed_again(
    forwarded: list[int],
) -> None:
    engine = tiny_engine()
    tokens = prompt(300)
    engine.post(forked("one", tokens, DRAWN, 3))
    engine.run()
    forwarded.clear()
    engine.post(forked("two", tokens, replace(DRAWN, max_new_tokens=1), 4))
    engine.run()
    assert sum(forwarded) == 4
    assert {engine.hit(name).usable_tokens for name in names("two", 4)} == {299}


def test_choices_share_pages_while_they_run() -> None:
    engine = tiny_engine(arena_mib=24)
    engine.post(forked("r", prompt(1025), replace(DRAWN, max_new_tokens=60)))
    while len(engine.all_said(m.TokenOut)) < 2 * CHOICES:
        engine.step()
    pages = engine.stats().pages
    # The prompt has sixteen pages, held once. Each choice has its own copy of the last page and one
    # more.
    assert pages["tree"] <= 17 and pages["working"] <= 2 * CHOICES
    engine.run()
    engine.assert_at_rest()


def test_choices_that_give_way_go_on_as_they_would() -> None:
    engine = tiny_engine(arena_mib=0.3, prefill_chunk_tokens=64)
    tokens, long = prompt(150), replace(DRAWN, max_new_tokens=200)
    engine.post(forked("r", tokens, long, 6))
    engine.post(forked("p", tokens[::-1], replace(PENALIZED, max_new_tokens=200), 2))
    engine.run()
    assert engine.stats().tree["leased_requests"] > 8 + 2, "no choice gave way"
    assert_each_as_alone(engine, "r", tokens, long, 6)
    assert_each_as_alone(engine, "p", tokens[::-1], replace(PENALIZED, max_new_tokens=200), 2)
    engine.assert_at_rest()


@pytest.mark.parametrize("gone", ["r", "r-1", "r-2"])
def test_an_abort_of_one_choice_in_any_step_spares_the_others(gone: str) -> None:
    tokens = prompt(150)
    for steps in range(0, 12, 2):
        engine = tiny_engine(prefill_chunk_tokens=64)
        engine.post(forked("r", tokens, DRAWN, 3))
        for _ in range(steps):
            engine.step()
        engine.post(m.Abort(m.RequestId(gone)))
        engine.run()
        assert engine.finished(gone).reason is m.FinishReason.ABORT or steps > 8
        for place, name in enumerate(names("r", 3)):
            if name != gone:
                own = replace(DRAWN, seed=DRAWN.seed + place)
                assert engine.tokens(name) == alone(tokens, 0, sampling=own)
        engine.assert_at_rest()


def test_an_abort_of_a_choice_spares_who_has_the_id_of_what_computed_its_prompt() -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    long = replace(DRAWN, max_new_tokens=40)
    engine.post(forked("r", prompt(150), long, 2))
    while not engine.tokens("r-1"):
        engine.step()
    engine.post(submit("r/prompt", prompt(70), 0, sampling=DRAWN))
    engine.step()
    for name in names("r", 2):
        engine.post(m.Abort(m.RequestId(name)))
    engine.run()
    assert engine.finished("r").reason is m.FinishReason.ABORT
    assert engine.tokens("r/prompt") == alone(prompt(70), 0, sampling=DRAWN)
    engine.assert_at_rest()


def test_choices_that_have_ended_are_gone_without_a_collection() -> None:
    engine = tiny_engine(prefill_chunk_tokens=64)
    gc.collect()
    gc.disable()
    try:
        engine.post(forked("r", prompt(150), DRAWN, 3))
        engine.run()
        assert not [one.id for one in gc.get_objects() if type(one) is Request]
    finally:
        gc.enable()


def test_where_every_choice_is_aborted_its_prompt_is_computed_no_further(
    forwarded: list[int],
) -> None:
    for steps in range(6):
        engine = tiny_engine(prefill_chunk_tokens=64)
        engine.post(forked("r", prompt(1000), DRAWN, 3))
        for _ in range(steps):
            engine.step()
        for name in names("r", 3):
            engine.post(m.Abort(m.RequestId(name)))
        forwarded.clear()
        engine.run()
        assert sum(forwarded) == 0
        ended = {item.request_id: item.reason for item in engine.all_said(m.Finished)}
        assert ended == dict.fromkeys(names("r", 3), m.FinishReason.ABORT)
        engine.assert_at_rest()


def test_what_is_refused_is_refused_for_every_choice() -> None:
    engine = tiny_engine(max_batch=4)
    engine.post(forked("long", prompt(5000), DRAWN, 3))
    engine.post(submit("r-1", prompt(100), 30))
    engine.post(forked("r", prompt(100), DRAWN, 3))
    engine.run()
    for name in names("long", 3):
        assert engine.rejected(name).kind is m.ErrorKind.TOO_LONG
    assert engine.rejected("r").kind is engine.rejected("r-2").kind is m.ErrorKind.INVALID
    assert engine.tokens("r-1") == alone(prompt(100), 30)
    engine.assert_at_rest()


def test_a_forward_that_fails_ends_every_choice_that_waits_for_it() -> None:
    engine = tiny_engine()

    def broken(*parts: object) -> object:
        raise RuntimeError("broken on purpose")

    engine.parts.model.forward = broken  # type: ignore[method-assign]
    engine.post(forked("r", prompt(100), DRAWN, 3))
    engine.run()
    for name in names("r", 3):
        assert engine.rejected(name).kind is m.ErrorKind.INTERNAL
    engine.assert_at_rest()


@pytest.mark.parametrize("new", [0, 4])
def test_the_prompt_of_several_choices_is_scored_once(new: int) -> None:
    tokens, sampling = prompt(200), replace(DRAWN, max_new_tokens=new)
    engine, lone = tiny_engine(prefill_chunk_tokens=64), tiny_engine()
    engine.post(forked("r", tokens, sampling, 3, prompt_logprobs=2))
    lone.post(submit("r", tokens, 0, sampling=sampling, prompt_logprobs=2))
    engine.run()
    lone.run()
    pieces = engine.all_said(m.PromptScored)
    assert {piece.request_id for piece in pieces} == {"r"}
    (whole,) = lone.all_said(m.PromptScored)
    found = np.concatenate([piece.logprobs for piece in pieces])
    np.testing.assert_allclose(found, whole.logprobs, rtol=0, atol=1e-4)
    if new:
        assert_each_as_alone(engine, "r", tokens, sampling, 3)
    for name in names("r", 3):
        assert engine.finished(name).usage.completion_tokens == new
    engine.assert_at_rest()


def finish(pair: EnginePair) -> None:
    pair.decode.run()
    pair.decode.assert_at_rest()
    pair.prefill.assert_at_rest()


@every_value(sampling=SAMPLINGS, length={"65": 65, "66": 66, "200": 200})
def test_a_pair_hands_one_prompt_over_and_forks_it(
    sampling: SamplingParams, length: int, forwarded: list[int]
) -> None:
    tokens = prompt(length)
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        transfer = pair.hand_over(forked("r", tokens, sampling, 4))
        forwarded.clear()
        pair.ready(transfer, 1e6)
        pair.decode.run()
        assert not pair.decode.all_said(m.TokenOut)
        pair.done(transfer)
        pair.decode.run()
        # Each forwards the prompt's last token, and all of the answer but its last token.
        assert sum(forwarded) == 4 * 12
        assert len(pair.decode.all_said(m.HandoverWanted)) == 1
        assert_each_as_alone(pair.decode, "r", tokens, sampling, 4)
        for name in names("r", 4):
            usage = pair.decode.finished(name).usage
            assert usage.prefilled_on == "prefill" and usage.transfer is not None
            assert usage.hit is not None and usage.hit.prompt_tokens == length
        assert pair.early.counters["begun"] == 0
        finish(pair)


def test_a_lost_hand_over_of_a_forked_prompt_is_computed_here() -> None:
    tokens = prompt(200)
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        transfer = pair.hand_over(forked("r", tokens, DRAWN, 3))
        pair.ready(transfer, None)
        pair.lose(transfer)
        assert_each_as_alone(pair.decode, "r", tokens, DRAWN, 3)
        usage = pair.decode.finished("r-1").usage
        assert usage.prefilled_on == "local" and usage.local_fallback
        finish(pair)


def test_an_abort_of_every_choice_gives_the_hand_over_up() -> None:
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        pair.decode.post(forked("r", prompt(200), DRAWN, 3))
        pair.decode.step()
        for name in names("r", 3)[:2]:
            pair.decode.post(m.Abort(m.RequestId(name)))
        assert not pair.decode.all_said(m.HandoverCancelled)
        pair.decode.post(m.Abort(m.RequestId("r-2")))
        pair.decode.run()
        assert len(pair.decode.all_said(m.HandoverCancelled)) == 1
        pair.decode.assert_at_rest()
