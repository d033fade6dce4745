"""Host memory below the arena. Evicted states come back by a load. A late, wrong or broken load
changes no token."""

from collections.abc import Iterator

import pytest

from tasuki.engine import messages as m
from tasuki.engine.messages.reports import LOAD_DECLINED, LOAD_FAILED
from tasuki.engine.request import Loading
from tests.harness.engines import alone, prompt, submit
from tests.harness.tiers import Fault, TieredEngine, flip_everything
from tests.harness.waiting import HANG_SECONDS

PROMPT = prompt(400, seed=1)
ANSWER = alone(PROMPT, 2)
NEXT = PROMPT + ANSWER + prompt(60, seed=2)
"""The next turn of a conversation with PROMPT as its first."""
KEPT = 401
"""The last token of an answer is never forwarded."""


@pytest.fixture
def tiered() -> Iterator[TieredEngine]:
    engine = TieredEngine()
    yield engine
    engine.copies.let_go()
    engine.lone.run()
    engine.lone.assert_at_rest()
    engine.close()


@pytest.fixture
def below(tiered: TieredEngine) -> TieredEngine:
    """Return an engine that has answered PROMPT, with its state only in host memory."""
    tiered.lone.ask("first", PROMPT, 2)
    tiered.empty_arena()
    return tiered


EXPECTED = alone(NEXT, 4)


def begun(tiered: TieredEngine, name: str, *held: str) -> None:
    """Ask for NEXT and wait until its load is held at such a segment."""
    tiered.copies.hold(*held)
    tiered.lone.post(submit(name, NEXT, 4))
    tiered.lone.step()
    tiered.copies.await_inside(held[0])


def test_what_was_evicted_is_loaded_and_not_computed(below: TieredEngine) -> None:
    match = below.lone.engine._cache.match(submit("x", NEXT, 1).prompt)
    assert match.usable_tokens == 0 and match.stored[0].boundary == KEPT
    assert below.lone.ask("next", NEXT, 4) == EXPECTED
    hit = below.lone.hit("next")
    # A turn's end is inside a page: its tail came along.
    assert hit.usable_tokens == KEPT and hit.loaded == {"host": KEPT}
    assert hit.usable_tokens + sum(hit.causes.values()) == len(NEXT)
    assert below.lone.phases("next") == ["Loading", "Prefilling", "Decoding", "Finished"]
    report = below.report
    assert report.loads["done"] == 1 and report.bytes["loaded"] > 0


def test_what_the_arena_still_has_is_not_loaded(tiered: TieredEngine) -> None:
    tiered.lone.ask("first", PROMPT, 2)
    tiered.lone.ask("next", NEXT, 4)
    hit = tiered.lone.hit("next")
    assert hit.usable_tokens == KEPT and not hit.loaded
    assert tiered.report.loads["done"] == 0 and tiered.report.writes["done"] >= 2


@pytest.mark.parametrize("segment", ["pages_up", "slot_up"])
@pytest.mark.parametrize("fault", Fault)
def test_a_load_that_brings_something_else_is_computed(
    below: TieredEngine, fault: Fault, segment: str
) -> None:
    below.copies.fault = lambda name: fault if name == segment else None
    assert below.lone.ask("next", NEXT, 4) == EXPECTED
    hit = below.lone.hit("next")
    assert hit.usable_tokens == 0 and not hit.loaded
    assert hit.causes[LOAD_FAILED] == KEPT
    assert hit.usable_tokens + sum(hit.causes.values()) == len(NEXT)
    assert hit.in_pages is not None
    assert hit.in_pages.usable_tokens + sum(hit.in_pages.causes.values()) == len(NEXT)
    end = "broken" if fault is Fault.RAISE else "mismatch"
    assert below.report.loads[end] == 1 and below.report.loads["done"] == 0
    assert below.lone.phases("next") == ["Loading", "Waiting", "Prefilling", "Decoding", "Finished"]


@pytest.mark.parametrize("segment", ["pages_down", "slot_down"])
@pytest.mark.parametrize("fault", Fault)
def test_what_was_written_wrongly_is_never_served(
    tiered: TieredEngine, fault: Fault, segment: str
) -> None:
    tiered.copies.fault = lambda name: fault if name == segment else None
    tiered.lone.ask("first", PROMPT, 2)
    tiered.copies.fault = lambda name: None
    tiered.empty_arena()
    assert tiered.lone.ask("next", NEXT, 4) == EXPECTED
    hit = tiered.lone.hit("next")
    assert not hit.loaded
    # A copy that raised was never usable, so there was nothing to load.
    assert bool(hit.causes.get(LOAD_FAILED)) is (fault is not Fault.RAISE)


def test_memory_that_rots_is_never_served(below: TieredEngine) -> None:
    assert below.parts.host is not None
    flip_everything(below.parts.host)
    assert below.lone.ask("next", NEXT, 4) == EXPECTED
    assert below.report.loads["mismatch"] == 1
    # The failed entry is gone and not tried again; the next turn uses the newly written one.
    below.empty_arena(seed=10_001)
    assert below.lone.ask("again", NEXT, 4) == EXPECTED


def test_a_late_load_is_computed_and_its_ids_wait_for_it(below: TieredEngine) -> None:
    begun(below, "next", "slot_up")
    below.clock.now += 3600
    below.step_until(lambda: below.is_over("next"))
    assert below.lone.tokens("next") == EXPECTED
    assert below.lone.hit("next").causes[LOAD_FAILED] == KEPT
    stats = below.lone.stats()
    # Its working slots, and one for the state to keep of the part computed behind the load.
    assert stats.pages["quarantined"] > 0 and stats.slots["quarantined"] == 3
    assert below.report.loads["late"] == 1
    below.copies.let_go()
    below.lone.run()
    assert below.lone.stats().pages["quarantined"] == 0


@pytest.mark.parametrize("segment", ["pages_up", "slot_up"])
def test_a_load_of_nobody_ends_by_itself(below: TieredEngine, segment: str) -> None:
    begun(below, "next", segment)
    below.lone.post(m.Abort(m.RequestId("next")))
    assert below.lone.finished("next").reason is m.FinishReason.ABORT
    assert below.report.loads["aborted"] == 1
    below.copies.let_go()
    below.lone.run()
    below.lone.assert_at_rest()
    assert below.lone.ask("again", NEXT, 4) == EXPECTED
    assert below.lone.hit("again").loaded


def test_an_abort_before_behind_and_long_after_a_load(below: TieredEngine) -> None:
    for name, steps in (("before", 0), ("begun", 1), ("behind", 3), ("late", 6)):
        below.lone.post(submit(name, NEXT, 4))
        below.lone.steps(steps)
        below.lone.post(m.Abort(m.RequestId(name)))
        below.lone.run()
        below.lone.assert_at_rest()
        below.empty_arena(seed=20_000 + steps)
    assert below.lone.ask("next", NEXT, 4) == EXPECTED


def test_others_are_answered_while_a_load_stands(below: TieredEngine) -> None:
    begun(below, "next", "pages_up")
    below.lone.post(submit("other", prompt(100, seed=3), 4))
    below.step_until(lambda: below.is_over("other"))
    assert below.lone.tokens("other") == alone(prompt(100, seed=3), 4)
    assert not below.is_over("next")
    below.copies.let_go()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED and below.lone.hit("next").loaded


def test_two_requests_join_one_load() -> None:
    tiered = TieredEngine()
    tiered.lone.ask("first", PROMPT, 2)
    tiered.empty_arena()
    tiered.copies.hold("pages_up")
    asked = {name: NEXT + prompt(5, seed) for seed, name in enumerate(("one", "two", "three"), 5)}
    for name, tokens in asked.items():
        tiered.lone.post(submit(name, tokens, 3))
    tiered.lone.steps(5)
    requests = tiered.lone.engine._handover.requests
    assert sum(isinstance(request.state, Loading) for request in requests) == 1
    tiered.copies.let_go()
    tiered.lone.run()
    for name, tokens in asked.items():
        assert tiered.lone.tokens(name) == alone(tokens, 3), name
    # KV is loaded once; the others loaded a state and its last page, at most.
    (tier,) = tiered.lone.engine._cache.stats().tiers
    assert len(PROMPT) // 64 + 1 <= tier.loaded_pages <= len(PROMPT) // 64 + 3
    tiered.lone.assert_at_rest()
    tiered.close()


def test_no_request_waits_for_a_write(tiered: TieredEngine) -> None:
    tiered.copies.hold("pages_down", "slot_down")
    asked = {f"r{seed}": prompt(700, seed=seed) for seed in range(4)}
    expected = {name: alone(tokens, 2) for name, tokens in asked.items()}
    for name, tokens in asked.items():
        tiered.lone.post(submit(name, tokens, 2))
        tiered.step_until(lambda name=name: tiered.is_over(name))  # type: ignore[misc]
        assert tiered.lone.tokens(name) == expected[name]
    assert tiered.report.writes["abandoned"] > 0
    tiered.copies.let_go()
    tiered.lone.run()
    # A write whose source was freed meanwhile is not used.
    for name, tokens in asked.items():
        assert tiered.lone.ask(f"{name}-again", tokens, 2) == expected[name]


@pytest.mark.parametrize("held", ["pages_up", "pages_down"])
def test_a_node_ends_with_copies_under_way(below: TieredEngine, held: str) -> None:
    below.copies.hold(held)
    below.lone.post(submit("next", NEXT if held == "pages_up" else prompt(300, seed=9), 2))
    below.step_until(lambda: held in below.copies.inside)
    # The copy hangs in a segment: close() gives up on it and returns False.
    tier = below.lone.engine._tiers
    assert tier is not None and not tier.close(0.01)
    below.copies.let_go()
    assert tier.close(HANG_SECONDS)
    below.lone.run()


def test_a_drain_is_over_once_what_is_loading_was_answered(below: TieredEngine) -> None:
    begun(below, "next", "slot_up")
    below.lone.post(m.Drain(7))
    below.lone.steps(3)
    assert not below.lone.all_said(m.Drained)
    below.copies.let_go()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED
    (drained,) = below.lone.all_said(m.Drained)
    assert drained.at_rest


def test_a_flush_beside_a_load_forgets_all_but_what_it_reads(below: TieredEngine) -> None:
    begun(below, "next", "slot_up")
    below.lone.post(m.FlushCache(0))
    assert below.report.held == {"pages": 7, "slots": 1}
    below.copies.let_go()
    below.lone.run()
    assert below.lone.tokens("next") == EXPECTED and below.lone.hit("next").loaded
    below.lone.flush()
    assert below.report.held == {"pages": 0, "slots": 0}


def test_what_is_cheaper_to_compute_is_not_loaded(tiered: TieredEngine) -> None:
    """A load costs more than a few tokens, so such a prompt is computed and reports this."""
    short = prompt(45, seed=4)
    tiered.lone.ask("first", short, 1)
    tiered.empty_arena()
    tiered.lone.ask("again", [*short, 1], 1)
    hit = tiered.lone.hit("again")
    assert hit.usable_tokens == 0 and not hit.loaded
    assert hit.causes[LOAD_DECLINED] == len(short)
    assert hit.usable_tokens + sum(hit.causes.values()) == len(short) + 1
    assert tiered.lone.stats().lost[LOAD_DECLINED] == len(short)
