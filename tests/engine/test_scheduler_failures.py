"""Failure modes of schedulers over a hybrid cache, one case each, on a whole engine: blocked
requests with a cost, thrashing retraction, starving pools."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from gc import collect
from time import monotonic
from typing import cast
from weakref import ref

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.engine.request import Decoding, Finished, Prefilling, Request
from tasuki.engine.roles.base import Handover
from tasuki.engine.scheduling.admission import QueueLimit, Seats
from tasuki.engine.scheduling.scheduled_forward import ScheduledSequence
from tasuki.engine.scheduling.scheduler import Scheduler
from tasuki.engine.speculation.draft_limit import FixedLimit
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache._cpp_cache import ImpossibleRequest
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.engines import prompt, submit, tiny_engine, tiny_parts

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
    """Count calls of the cache by name."""
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
    """Return a list of (request, its tokens) for each retraction."""
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
        transfer_id = engine.engine.max_request_tokens
        engine.post(submit("runs", prompt(transfer_id - 100), 90))
        for number in range(blocked):
            engine.post(submit(f"waits {number}", prompt(transfer_id - 100, seed=number + 1), 4))
        told = []
        with counted(monkeypatch) as calls:
            for _ in range(60):
                version = engine.engine._cache.room_version
                calls.clear()
                engine.step()
                if version == engine.engine._cache.room_version:
                    told.append(Counter(calls))
        return told[1:]  # the first one is asked and rejected once

    alone, with_waiters = calls_of_a_step(0), calls_of_a_step(waiters)
    assert len(with_waiters) > 40
    for calls in with_waiters:
        assert calls["match"] == calls["allocation"] == 0, "the blocked head was matched again"
    assert sum(alone, Counter()) == sum(with_waiters, Counter()), "waiting cost calls"


def test_pages_are_asked_for_when_a_token_has_no_room_and_not_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """64 tokens have space for as many more; then it grows for 193, in four pages; then for all
    263."""
    engine = tiny_engine()
    with counted(monkeypatch) as calls:
        assert len(engine.ask("r", prompt(64), 200)) == 200
    assert calls["extend"] == 2


def test_two_requests_that_cannot_both_fit_finish_with_few_retractions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = retractions(monkeypatch)
    engine = tiny_engine(slabs=10)
    transfer_id = engine.engine.max_request_tokens
    answer = transfer_id * 2 // 3 - 64
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
    # On a busy machine a waiting request must not be rejected.
    engine = tiny_engine(slabs=14, prefill_chunk_tokens=64, queue_timeout=3600.0)
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
    # A retracted request returns only after another one has finished.
    assert max(Counter(name for name, _ in seen).values()) < requests
    engine.assert_at_rest()


def test_a_request_near_the_pool_size_progresses_over_a_full_cache() -> None:
    engine = tiny_engine(slabs=10)
    for seed in range(8):
        engine.ask(f"fill {seed}", prompt(150, seed=seed), 20)
    transfer_id = engine.engine.max_request_tokens
    assert len(engine.ask("large", prompt(transfer_id - 10, seed=99), 10)) == 10
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
    """Short prompts fill the arena with states, long ones with pages. Each still keeps its latest
    result."""
    engine = tiny_engine(slabs=12)
    transfer_id = engine.engine.max_request_tokens
    for turn in range(4):
        for seed in range(14):
            engine.ask(f"short {turn} {seed}", prompt(70, seed=100 * turn + seed), 2)
        assert engine.stats().slots["tree"] >= 4, "states starve"
        long = prompt(transfer_id // 2, seed=50 + turn)
        for time in ("first", "again"):
            engine.ask(f"long {turn} {time}", long, 2)
        assert engine.hit(f"long {turn} again").usable_tokens == (len(long) - 1) // 64 * 64
        assert engine.stats().pages["tree"] >= len(long) // 64, "pages starve"
    engine.assert_at_rest()


class Planned:
    """A scheduler over its own cache; its forwards complete when the test says so."""

    def __init__(self, slots: int = 2, **changes: int) -> None:
        self.cache = HybridPrefixCache(tiny_parts().arena)
        self._slots = slots
        config = EngineConfig(model="tiny", **changes)  # type: ignore[arg-type]
        limit = QueueLimit(60.0)
        rows = changes.get("max_batch", 64)
        seats, drafts = Seats(rows, None), FixedLimit(0)
        self.scheduler = Scheduler(self.cache, config, self.begin, limit, seats, drafts, rows)

    def request(self, length: int, seed: int = 0, answer: int = 4) -> Request:
        tokens = np.array(prompt(length, seed), dtype=np.int32)
        return Request(m.RequestId(f"r{seed}"), tokens, SamplingParams(max_new_tokens=answer))

    def begin(self, request: Request) -> bool:
        allocation = self.cache.allocate(
            request.prompt,
            salt=b"",
            capacity_tokens=request.length,
            working_slots=self._slots,
            cursor=None,
        )
        assert allocation is not None
        slots = tuple(allocation.working_slots)
        progress = self.scheduler.progress.begin(slots, allocation.cached_tokens)
        request.move(Prefilling(allocation, progress))
        return True

    def spans(self) -> list[tuple[str, int, int, int]]:
        """Return (request, first token, end, tokens sampled) for each sequence of the next
        forward."""
        work = self.scheduler.schedule(0)
        items = [*work.answers.sequences(), *work.prompts]
        return [(item.request.id, item.start, item.stop, item.num_sampled) for item in items]


def complete(item: ScheduledSequence) -> None:
    item.active.progress.complete(item.stop, item.write_index, item.num_sampled)


@pytest.mark.parametrize(
    ("slots", "later", "kept"),
    [
        pytest.param(2, False, 64, id="what had landed is kept"),
        pytest.param(1, False, 0, id="the state is half written"),
        pytest.param(2, True, 0, id="a later forward overwrites the state"),
    ],
)
def test_a_failed_forward_leaves_a_sound_state_or_none(slots: int, later: bool, kept: int) -> None:
    planned = Planned(slots, prefill_chunk_tokens=64)
    scheduler, request = planned.scheduler, planned.request(300)
    scheduler.enqueue(request)
    (first,) = scheduler.schedule(0).prompts
    complete(first)
    (failed,) = scheduler.schedule(0).prompts
    if later:
        assert len(scheduler.schedule(0)) == 1
    scheduler.set_apart([failed])
    assert request.suspect and list(scheduler.waiting) == [request] and not scheduler.running
    assert planned.cache.match(request.prompt).usable_tokens == kept
    stats = planned.cache.stats()
    assert stats.allocations == stats.pages.working == stats.slots.working == 0


def test_a_forward_takes_what_its_budget_allows_and_ends_inside_a_prompt_on_a_page() -> None:
    planned = Planned(prefill_chunk_tokens=128)
    for seed, length in enumerate((100, 200)):
        planned.scheduler.enqueue(planned.request(length, seed))
    # Three quarters of the chunk are one page and a half.
    assert planned.spans() == [("r0", 0, 64, 0), ("r1", 0, 64, 0)]
    # Twenty-eight tokens are no page.
    assert planned.spans() == [("r0", 64, 100, 1), ("r1", 64, 128, 0)]


def test_the_last_token_of_a_budget_is_used() -> None:
    planned = Planned(prefill_chunk_tokens=64)
    for seed, length in enumerate((63, 1, 64)):
        planned.scheduler.enqueue(planned.request(length, seed))
    assert planned.spans() == [("r0", 0, 63, 1), ("r1", 0, 1, 1)]


def test_requests_that_began_elsewhere_widen_no_forward() -> None:
    planned = Planned(max_batch=2)
    for seed in range(3):
        request = planned.request(70, seed)
        planned.begin(request)
        planned.scheduler.start(request)
    assert [name for name, *_ in planned.spans()] == ["r0", "r1"]


def test_a_refusal_holds_until_what_it_depends_on_has_changed() -> None:
    class Cache:
        room_version = 1

    class Side:
        admission_terms = False
        answer: bool | None = False
        asked = 0

        def __init__(self) -> None:
            self.rejected: list[m.ErrorKind] = []

        def admit(self, request: Request) -> bool:
            self.asked += 1
            if self.answer is None:
                raise ImpossibleRequest("never")
            return self.answer

        def reject(self, request: Request, error: m.RequestError) -> None:
            self.rejected.append(error.kind)

    cache, side = Cache(), Side()
    engine = tiny_engine().engine
    engine._cache, engine._handover = cast(HybridPrefixCache, cache), cast(Handover, side)
    request = Planned().request(10)
    for changed, asked in ((None, 1), (None, 1), ("room", 2), (None, 2), ("terms", 3), (None, 3)):
        cache.room_version += changed == "room"
        side.admission_terms = side.admission_terms or changed == "terms"
        assert not engine._admit(request) and side.asked == asked
    cache.room_version += 1
    side.answer = True
    assert engine._admit(request) and request.refused_at is None
    side.answer = None
    assert not engine._admit(request) and side.rejected == [m.ErrorKind.TOO_LONG]


def answering(planned: Planned, names: int, length: int = 70) -> list[Request]:
    """Add decoding requests with prompts computed elsewhere."""
    requests = [planned.request(length, seed, answer=50) for seed in range(names)]
    for request in requests:
        planned.begin(request)
        assert isinstance(request.state, Prefilling)
        progress = request.state.progress
        progress.schedule(length, 0, 0)
        progress.complete(length, 0, 0)
        request.move(Decoding(request.state.allocation, progress))
        planned.scheduler.start(request)
    return requests


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_more_answers_than_rows_take_turns(rows: int) -> None:
    planned = Planned(max_batch=rows)
    answering(planned, 5)
    turns = [name for _ in range(15) for name, *_ in planned.spans()]
    assert turns[:rows] == [f"r{seed}" for seed in range(rows)] and len(turns) == 15 * rows
    for before in range(0, len(turns) - 4, 5):
        assert sorted(turns[before : before + 5]) == [f"r{seed}" for seed in range(5)]


@pytest.mark.parametrize("answers", [2, 3])
def test_a_prompt_has_a_row_beside_more_answers_than_rows(answers: int) -> None:
    planned = Planned(max_batch=2)
    answering(planned, answers)
    prompt = planned.request(70, seed=9)
    planned.begin(prompt)
    planned.scheduler.start(prompt)
    assert [name for name, *_ in planned.spans()] == ["r0", "r9"]


def test_who_would_be_late_is_computed_first_once_the_speed_is_known() -> None:
    planned = Planned(prefill_chunk_tokens=64)
    scheduler = planned.scheduler
    for seed in range(2):
        scheduler.enqueue(planned.request(64 * 20, seed))
    hurried = planned.request(64 * 30, seed=2)
    hurried.first_due = monotonic() + 3600.0
    scheduler.enqueue(hurried)
    seconds = 3600.0 / 40
    firsts = []
    for _ in range(16):
        work = scheduler.schedule(0)
        firsts.append(work.prompts[0].request.id)
        complete(work.prompts[0])
        scheduler.completed(work, seconds)
    assert "r2" not in firsts[:8]
    assert [name for turn, name in enumerate(firsts) if turn >= 8 and turn % 4] == ["r2"] * 6


def test_who_gives_way_in_the_step_in_which_it_needs_room_itself_is_not_grown() -> None:
    planned = Planned()
    old, young = answering(planned, 2, length=64)
    cache = planned.cache
    free = cache.stats().pages.free - cache.arena.layout.pages_per_slab
    assert cache.allocate(np.ones(1, np.int32), capacity_tokens=64 * free, working_slots=1)
    assert cache.stats().pages.free == 0
    assert planned.spans() == [("r0", 64, 65, 1)]
    assert list(planned.scheduler.waiting) == [young] and [*planned.scheduler.running] == [old]


def test_nothing_is_kept_of_who_is_over() -> None:
    planned = Planned()
    request = planned.request(70)
    planned.scheduler.enqueue(request)
    (item,) = planned.scheduler.schedule(0).prompts
    complete(item)
    planned.scheduler.drop(request)
    planned.cache.release(item.active.allocation)
    request.move(Finished())
    gone = ref(request)
    del request, item
    assert not planned.scheduler.schedule(0)
    collect()
    assert gone() is None
