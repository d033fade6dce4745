"""Failure modes of schedulers over a hybrid cache, one case each, on a whole engine: blocked
requests that cost, retraction that thrashes, pools that starve."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tasuki.engine.request import Request
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.pycache.prefix_cache import HybridPrefixCache

from tests.harness.engines import prompt, submit, tiny_engine

CALLS = (
    "match",
    "allocate",
    "allocate_to_receive",
    "extend",
    "take_checkpoint_slot",
    "insert",
    "release",
)


@contextmanager
def counted(patch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """Calls of the cache, by name."""
    calls: Counter[str] = Counter()

    def wrap(name: str) -> None:
        plain = getattr(HybridPrefixCache, name)

        def counting(self: HybridPrefixCache, *args: object, **named: object) -> object:
            calls[name] += 1
            return plain(self, *args, **named)

        patch.setattr(HybridPrefixCache, name, counting)

    with patch.context() as patch:
        for name in CALLS:
            wrap(name)
        yield calls


def retractions(patch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """Fills with (request, tokens it had) as they happen."""
    seen: list[tuple[str, int]] = []
    plain = Scheduler._retract

    def telling(self: Scheduler, request: Request) -> None:
        seen.append((request.id, len(request.output)))
        plain(self, request)

    patch.setattr(Scheduler, "_retract", telling)
    return seen


@pytest.mark.parametrize("waiters", [1, 40])
def test_a_blocked_request_asks_the_cache_nothing_until_room_may_have_come(
    waiters: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def calls_of_a_step(blocked: int) -> list[Counter[str]]:
        engine = tiny_engine(slabs=8)
        room = engine.engine.max_request_tokens
        engine.post(submit("runs", prompt(room - 100), 90))
        for number in range(blocked):
            engine.post(submit(f"waits {number}", prompt(room - 100, seed=number + 1), 4))
        told = []
        with counted(monkeypatch) as calls:
            for _ in range(60):
                version = engine.engine._cache.room_version
                calls.clear()
                engine.step()
                if version == engine.engine._cache.room_version:
                    told.append(Counter(calls))
        return told[1:]  # the first of them is asked, and refused, once

    alone, with_waiters = calls_of_a_step(0), calls_of_a_step(waiters)
    assert len(with_waiters) > 40
    for calls in with_waiters:
        assert calls["match"] == calls["allocation"] == 0, "the blocked head was matched again"
    assert sum(alone, Counter()) == sum(with_waiters, Counter()), "waiting cost calls"


def test_two_requests_that_cannot_both_fit_finish_with_few_retractions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = retractions(monkeypatch)
    engine = tiny_engine(slabs=10)
    room = engine.engine.max_request_tokens
    answer = room * 2 // 3 - 64
    for name in ("old", "young"):
        engine.post(submit(name, prompt(64, seed=len(name)), answer))
    engine.run(steps=4 * answer)
    for name in ("old", "young"):
        assert len(engine.tokens(name)) == answer
    assert seen, "both fitted: the arena is too large for this test"
    assert {name for name, _ in seen} == {"young"}, "the oldest never gives way"
    assert len(seen) <= 2, "thrash"
    engine.assert_at_rest()


@pytest.mark.parametrize("requests", [3, 6])
def test_every_retraction_is_followed_by_progress(
    requests: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = retractions(monkeypatch)
    engine = tiny_engine(slabs=14, prefill_chunk_tokens=64)
    names = [f"r{number}" for number in range(requests)]
    for number, name in enumerate(names):
        engine.post(submit(name, prompt(100, seed=number), 260))
    progress = []
    for _ in range(20_000):
        before = len(seen)
        done = sum(len(engine.tokens(name)) for name in names)
        if not engine.step():
            break
        if len(seen) > before:
            progress.append(done)
    assert all(len(engine.tokens(name)) == 260 for name in names)
    assert seen, "all fitted: the arena is too large for this test"
    assert len(set(progress)) == len(progress), "two rounds of retraction without a token between"
    # Whoever gave way comes back only when somebody finished.
    assert max(Counter(name for name, _ in seen).values()) < requests
    engine.assert_at_rest()


def test_a_request_near_the_pool_size_progresses_over_a_full_cache() -> None:
    engine = tiny_engine(slabs=10)
    for seed in range(8):
        engine.ask(f"fill {seed}", prompt(150, seed=seed), 20)
    room = engine.engine.max_request_tokens
    assert len(engine.ask("large", prompt(room - 10, seed=99), 10)) == 10
    engine.assert_at_rest()


def test_a_turn_that_resumes_inside_a_page_progresses_with_the_smallest_chunks() -> None:
    engine = tiny_engine(slabs=24, prefill_chunk_tokens=64)
    first = prompt(101)
    whole = first + engine.ask("first", first, 3)
    engine.post(submit("next", whole + prompt(130, seed=2), 3))
    engine.post(submit("beside", prompt(130, seed=3), 3))
    engine.run()
    assert engine.hit("next").usable_tokens == len(whole) - 1
    assert len(engine.tokens("beside")) == 3


def test_a_full_pool_of_either_kind_starves_neither() -> None:
    """Short prompts fill the arena with states, long ones with pages: each then still keeps what it
    just computed."""
    engine = tiny_engine(slabs=12)
    room = engine.engine.max_request_tokens
    for turn in range(4):
        for seed in range(14):
            engine.ask(f"short {turn} {seed}", prompt(70, seed=100 * turn + seed), 2)
        assert engine.stats().slots["tree"] >= 4, "states starve"
        long = prompt(room // 2, seed=50 + turn)
        for time in ("first", "again"):
            engine.ask(f"long {turn} {time}", long, 2)
        assert engine.hit(f"long {turn} again").usable_tokens == (len(long) - 1) // 64 * 64
        assert engine.stats().pages["tree"] >= len(long) // 64, "pages starve"
    engine.assert_at_rest()
