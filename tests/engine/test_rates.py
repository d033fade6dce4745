"""Decisions by measured rates, and the learning of these rates."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.engine.accounting import FRESH, LEAST, Line, LineFit
from tasuki.engine.messages import Choice
from tasuki.engine.routing import (
    CostLearner,
    Rates,
    RoutingDecision,
    choose_prefill_place,
    should_pull,
)

FAST_LINK = Rates(
    Line(0.01, 1e-3), Line(0.05, 1e-4), Line(0.0, 1e-9), Line(0.002, 1e-9), Line(0.01, 1e-3)
)
amounts = st.integers(1, 100_000)
lines = st.builds(Line, st.floats(0, 1), st.floats(1e-9, 1e-2))


def test_without_rates_the_constants_decide() -> None:
    for known in (Rates(), Rates(here=Line(0, 1)), Rates(here=Line(0, 1), there=Line(0, 1))):
        assert choose_prefill_place(known, 128, 10**6, at_most=128) == RoutingDecision(Choice.HERE)
        assert choose_prefill_place(known, 129, 10**6, at_most=128) == RoutingDecision(Choice.THERE)
        assert should_pull(known, 32, 10**6, at_least=32) == RoutingDecision(Choice.PULLED)
        assert should_pull(known, 31, 10**6, at_least=32) == RoutingDecision(Choice.THERE)


def test_a_pull_of_which_one_rate_is_known_is_decided_by_the_constants() -> None:
    line = Line(0.0, 1e-3)
    for known in (Rates(), Rates(forwarded=line), Rates(pulled=line)):
        assert should_pull(known, 100, 1000, at_least=100).choice is Choice.PULLED
        assert should_pull(known, 99, 1000, at_least=100).choice is Choice.THERE


def test_the_threshold_follows_the_rates() -> None:
    """This node takes 10 ms + 1 ms a token, the other 50 ms + 0.1 ms: equal at 44 tokens, and at
    more over a slow link."""
    assert choose_prefill_place(FAST_LINK, 44, 1000, at_most=128).choice is Choice.HERE
    assert choose_prefill_place(FAST_LINK, 45, 1000, at_most=128).choice is Choice.THERE
    slow = Rates(FAST_LINK.here, FAST_LINK.there, Line(0.0, 1e-6), None)
    decision = choose_prefill_place(slow, 45, 100_000, at_most=1)
    assert decision.choice is Choice.HERE and decision.learnt
    assert decision.estimates == {
        "here": pytest.approx(0.055),
        "there": pytest.approx(0.0545 + 0.1 - 0.0045),
    }
    assert choose_prefill_place(slow, 1000, 100_000, at_most=1).choice is Choice.THERE


def test_what_is_sent_hides_behind_what_is_computed() -> None:
    long = choose_prefill_place(FAST_LINK, 10_000, 10**9, at_most=0)
    assert long.estimates["there"] == pytest.approx(0.05 + 1.0)
    assert choose_prefill_place(FAST_LINK, 10_000, 3 * 10**9, at_most=0).estimates[
        "there"
    ] == pytest.approx(3.05)


def test_a_pull_pays_where_the_link_is_faster_than_the_forward() -> None:
    assert should_pull(FAST_LINK, 300, 10**6, at_least=999).choice is Choice.PULLED
    slow = Rates(forwarded=Line(5.0, 1e-5), pulled=Line(0.002, 1e-9))
    decision = should_pull(slow, 300, 10**6, at_least=1)
    assert decision.choice is Choice.THERE, "the forward's fixed cost is no reason to pull"
    assert decision.estimates == {"pull": pytest.approx(0.003), "compute": pytest.approx(0.003)}
    assert should_pull(FAST_LINK, 0, 0, at_least=0) == RoutingDecision(Choice.THERE)


def test_what_a_busy_node_makes_prompts_wait_is_no_reason_to_pull() -> None:
    """A prompt takes 4 ms a token from its turn to its first token, but only 0.03 of them to
    compute."""
    busy = Rates(here=Line(0.0, 4e-3), pulled=Line(0.5, 1e-9), forwarded=Line(0.01, 3e-5))
    assert should_pull(busy, 150, 10**6, at_least=1).choice is Choice.THERE
    assert should_pull(busy, 50_000, 10**6, at_least=1).choice is Choice.PULLED


def test_a_pull_hides_behind_the_prompts_that_are_computed_before() -> None:
    """It takes half a second, and 150 tokens 4.5 ms."""
    rates = Rates(pulled=Line(0.5, 0.0), forwarded=Line(0.01, 3e-5))
    behind = should_pull(rates, 150, 10**6, at_least=32, ahead=0.498)
    assert behind.choice is Choice.PULLED and behind.estimates["pull"] == pytest.approx(0.002)
    assert should_pull(rates, 150, 10**6, at_least=32, ahead=0.49).choice is Choice.THERE
    assert should_pull(rates, 31, 10**6, at_least=32, ahead=9.0).choice is Choice.THERE, (
        "so few are not worth the work"
    )
    assert should_pull(rates, 32, 10**6, at_least=32, ahead=9.0).estimates["pull"] == 0


@given(lines, lines, lines, amounts, amounts, st.integers(0, 1000))
def test_the_cheaper_estimate_is_chosen(
    here: Line, there: Line, sent: Line, tokens: int, size: int, at_most: int
) -> None:
    decision = choose_prefill_place(Rates(here, there, sent), tokens, size, at_most)
    cheaper = decision.estimates["here"] <= decision.estimates["there"]
    assert decision.choice is (Choice.HERE if cheaper else Choice.THERE)
    assert decision.estimates["there"] >= there.seconds(tokens)


@given(lines, amounts, amounts)
def test_a_faster_there_never_brings_a_prompt_here(there: Line, tokens: int, size: int) -> None:
    here, sent = Line(0.01, 1e-4), Line(0.001, 1e-9)
    before = choose_prefill_place(Rates(here, there, sent), tokens, size, 0)
    faster = choose_prefill_place(
        Rates(here, Line(there.fixed / 2, there.each), sent), tokens, size, 0
    )
    if before.choice is Choice.THERE:
        assert faster.choice is Choice.THERE


def test_a_line_is_found_under_noise_and_follows_a_change() -> None:
    rng = random.Random(3)
    fit = LineFit()
    for fixed, each in ((0.02, 1e-3), (0.1, 5e-4)):
        for _ in range(200):
            amount = rng.randrange(10, 2000)
            fit.add(amount, (fixed + each * amount) * rng.uniform(0.95, 1.05))
        line = fit.line()
        assert line is not None
        for amount in (100, 1000):
            assert line.seconds(amount) == pytest.approx(fixed + each * amount, rel=0.2)


def test_few_samples_or_old_ones_say_nothing() -> None:
    meter = CostLearner()
    for index in range(LEAST):
        assert meter.rates().here is None
        meter.here.add(100 * (index + 1), 0.1 * (index + 1))
    line = meter.rates().here
    assert line is not None and line.seconds(1000) == pytest.approx(1.0)
    for _ in range(FRESH + 1):
        assert meter.rates().here is not None
        meter.judged()
    assert meter.rates().here is None
    meter.here.add(100, 0.1)
    assert meter.rates().here is not None


def test_what_is_old_is_tried_again_by_one_and_not_by_all_who_come_meanwhile() -> None:
    meter = CostLearner()
    for index in range(LEAST):
        meter.here.add(100 * (index + 1), 0.1 * (index + 1))
    tries = 0
    for _ in range(10 * (FRESH + 2)):
        tries += meter.rates().here is None
        meter.judged()
    assert tries == 10


@given(st.lists(st.tuples(amounts, st.floats(0, 100)), min_size=LEAST, max_size=40))
def test_no_line_is_negative_or_falls(samples: list[tuple[int, float]]) -> None:
    fit = LineFit()
    for amount, seconds in samples:
        fit.add(amount, seconds)
    line = fit.line()
    assert line is not None and line.fixed >= 0 and line.each >= 0
