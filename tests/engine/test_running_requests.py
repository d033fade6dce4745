"""Rows kept as columns, compared with their reference, a plain list of requests. After each random
join, chunk, forward, end or retraction both are equal, and so are the plans made from them."""

import random
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tasuki.engine.forward_plan import AT_INDEX, JoinedSequence, NewPages, RowFlag, plan_rows
from tasuki.engine.messages import RequestId
from tasuki.engine.progress import ProgressTable
from tasuki.engine.request import Aborted, Active, Decoding, Prefilling, Request
from tasuki.engine.roles.answers import StopTokens
from tasuki.engine.scheduling.queues import Held, RunningRequests
from tasuki.engine.scheduling.scheduled_forward import (
    AnswerRows,
    ForwardPlanner,
    ScheduledForward,
    ScheduledSequence,
)
from tasuki.model.ops.sampling.params import SamplingParams

LANES = 24
PAGE = 64


@dataclass
class Twin:
    """One request as plain numbers."""

    request: Request
    batch_index: int
    slots: int
    computed: int
    slot: int
    scheduled: int = field(init=False)
    scheduled_slot: int = field(init=False)
    in_flight: int = 0
    answers: bool = False

    def __post_init__(self) -> None:
        self.scheduled, self.scheduled_slot = self.computed, self.slot

    @property
    def allocation(self) -> Any:
        assert isinstance(self.request.state, Active)
        return self.request.state.allocation

    @property
    def due(self) -> bool:
        expected = self.request.length + self.in_flight
        return self.answers and self.scheduled < min(expected, self.request.final_length)

    def numbers(self) -> tuple[int, ...]:
        return self.computed, self.slot, self.scheduled, self.scheduled_slot, self.in_flight


@dataclass
class Row:
    """One request's row of a forward."""

    twin: Twin
    start: int
    stop: int
    read: int
    write: int
    draws: int
    at_index: bool
    known: list[int]

    @property
    def allocation(self) -> Any:
        return self.twin.allocation


class Both:
    """The columns, and the list."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.progress = ProgressTable(LANES)
        self.running = RunningRequests(self.progress)
        self.planner = ForwardPlanner(self.progress)
        self.twins: list[Twin] = []
        self.joined: dict[int, tuple[Any, int]] = {}
        self.flight: tuple[ScheduledForward, list[Row]] | None = None
        self.seen = 0

    def join(self) -> None:
        free = [
            batch_index
            for batch_index in range(LANES - 1)
            if self.progress.holders[batch_index] == 0
        ]
        if not free:
            return
        self.seen += 1
        batch_index, slots = self.rng.choice(free), self.rng.choice([1, 2])
        length = self.rng.randrange(2, 200)
        sampling = SamplingParams(max_new_tokens=self.rng.randrange(1, 30), seed=self.seen)
        request = Request(
            RequestId(f"r{self.seen}"),
            np.arange(length, dtype=np.int32),
            sampling,
            caller=self.rng.choice("ab"),
        )
        prompt = self.rng.random() < 0.7
        computed, slot = (self.rng.randrange(length), 0) if prompt else (length, slots - 1)
        if not prompt:
            request.output.append(7)
        allocation: Any = SimpleNamespace(
            working_slots=[batch_index, LANES - 1][:slots],
            pages=np.arange(-(-(length + 1) // PAGE), dtype=np.int32),
        )
        allocation.capacity_tokens = PAGE * len(allocation.pages)
        progress = self.progress.begin(tuple(allocation.working_slots), computed, slot)
        kind = Prefilling if prompt else Decoding
        request.state = kind(allocation, progress)
        self.running.add(request)
        self.twins.append(Twin(request, batch_index, slots, computed, slot, answers=not prompt))

    def leave(self) -> None:
        if self.twins:
            self.end(self.rng.choice(self.twins))

    def end(self, twin: Twin) -> None:
        self.twins.remove(twin)
        if self.rng.random() < 0.5:
            self.running.discard(twin.request)
            twin.request.move(Aborted())
        else:
            twin.request.move(Aborted())
            self.running.discard(twin.request)

    def forward(self) -> None:
        """Schedule a forward, compare its plan, and complete the one before."""
        for twin in self.twins:
            if twin.due and twin.scheduled + 1 > twin.allocation.capacity_tokens:
                twin.allocation.pages = np.append(twin.allocation.pages, np.int32(self.seen))
                twin.allocation.capacity_tokens += PAGE
                assert isinstance(twin.request.state, Active)
                self.running.grown(twin.request, twin.request.state)
        batch_indices = self.running.answering()
        most = self.rng.choice([len(batch_indices), len(batch_indices) // 2])
        due = [twin for twin in self.twins if twin.due][:most]
        answers = self.running.schedule_next(batch_indices[:most])
        rows = [self.answer_row(twin) for twin in due]
        assert_same_rows(answers, rows)
        prompts = [self.chunk(twin) for twin in self.twins if not twin.answers]
        forward = ScheduledForward(answers, [item for item, _ in prompts])
        rows += [row for _, row in prompts]
        self.compare_plan(forward, rows)
        before, self.flight = self.flight, (forward, rows)
        if before is not None:
            self.complete(*before)

    def answer_row(self, twin: Twin) -> Row:
        stop = twin.request.length + twin.in_flight
        start, read = twin.scheduled, twin.scheduled_slot
        known = [] if twin.in_flight else twin.request.token_slice(start, stop)
        row = Row(twin, start, stop, read, (read + 1) % twin.slots, 1, twin.in_flight > 0, known)
        twin.scheduled, twin.scheduled_slot, twin.in_flight = stop, row.write, 1
        return row

    def chunk(self, twin: Twin) -> tuple[ScheduledSequence, Row]:
        request, state = twin.request, twin.request.state
        assert isinstance(state, Prefilling)
        start, read = twin.scheduled, twin.scheduled_slot
        stop = min(request.length, start + self.rng.randrange(1, 100))
        draws, write = int(stop == request.length), (read + 1) % twin.slots
        item = ScheduledSequence(request, state, start, stop, read, state.next_index, draws)
        state.progress.schedule(stop, state.next_index, draws)
        if draws:
            self.running.prompt_scheduled(request, state)
            twin.answers = True
        twin.scheduled, twin.scheduled_slot, twin.in_flight = stop, write, draws
        row = Row(twin, start, stop, read, write, draws, False, request.token_slice(start, stop))
        return item, row

    def complete(self, forward: ScheduledForward, rows: list[Row]) -> None:
        live = [row for row in rows if row.twin in self.twins]
        answers = forward.answers
        still = answers.live(self.progress)
        of_answers = rows[: len(answers)]
        assert still.tolist() == [row.twin in self.twins for row in of_answers]
        assert [i.request for i in forward.live_sequences(self.progress)] == [
            row.twin.request for row in live
        ]
        kept = answers.take(still.nonzero()[0])
        self.progress.complete_next(kept.batch_indices, kept.tokens)
        for request, index, last in zip(kept.requests, kept.indices, kept.is_last, strict=True):
            request.output.append(9)
            assert index == len(request.output) - 1
            assert last == (len(request.output) >= request.sampling.max_new_tokens)
        for item in forward.prompts:
            if item.live:
                item.active.progress.complete(item.stop, item.write_index, item.num_sampled)
                if item.num_sampled:
                    assert isinstance(item.request.state, Prefilling)
                    state = item.request.state
                    item.request.move(Decoding(state.allocation, state.progress))
                    item.request.output.append(9)
        for row in live:
            twin = row.twin
            twin.computed, twin.slot = row.stop, row.write
            if row.draws and twin.scheduled == row.stop:
                twin.in_flight = 0
            if row.draws and len(twin.request.output) >= twin.request.sampling.max_new_tokens:
                self.end(twin)

    def compare_plan(self, forward: ScheduledForward, rows: list[Row]) -> None:
        """Compare the plan with one made row by row from a list."""
        left, joined, pages, numbers, tokens = [], [], [], [], []
        for row in rows:
            twin, allocation, batch_index = row.twin, row.allocation, row.twin.batch_index
            known, limit = self.joined.get(batch_index, (None, 0))
            if known is not allocation:
                if known is not None:
                    left.append(batch_index)
                limit = 0
                slots = tuple(allocation.working_slots)
                joined.append(JoinedSequence(batch_index, slots, 1, twin.request.sampling))
            if allocation.capacity_tokens != limit:
                pages.append(NewPages(batch_index, allocation.pages[limit // PAGE :]))
            self.joined[batch_index] = allocation, allocation.capacity_tokens
            flags = AT_INDEX.value if row.at_index else 0
            if row.draws and row.stop - row.start == 1:
                flags |= RowFlag.DECODES.value
            tokens += row.known
            numbers += [batch_index, row.start, row.stop - row.start, row.read, row.write]
            numbers += [allocation.capacity_tokens, row.draws, flags]
        if len(self.joined) > len(rows):
            alive = {twin.batch_index: twin.allocation for twin in self.twins}
            gone = [
                batch_index
                for batch_index, (allocation, _) in self.joined.items()
                if alive.get(batch_index) is not allocation
            ]
            left += gone
            for batch_index in gone:
                del self.joined[batch_index]
        plan = self.planner.plan(forward, ())
        assert sorted(plan.left) == sorted(left)
        assert list(plan.joined) == joined
        assert [(new.batch_index, new.pages.tolist()) for new in plan.new_pages] == [
            (new.batch_index, new.pages.tolist()) for new in pages
        ]
        np.testing.assert_array_equal(plan.rows.columns, plan_rows(numbers).columns)
        assert plan.tokens.tolist() == tokens

    def compare(self) -> None:
        running, twins = self.running, self.twins
        requests = [twin.request for twin in twins]
        assert list(running) == requests and list(reversed(running)) == requests[::-1]
        assert len(running) == len(twins) and all(request in running for request in requests)
        due = [twin for twin in twins if twin.due]
        assert running.of(running.answering()) == [twin.request for twin in due]
        assert running.unfinished_prompts() == [t.request for t in twins if not t.answers]
        held: dict[str, Held] = {}
        for twin in twins:
            mine = held.setdefault(twin.request.caller, Held())
            mine.rows, mine.tokens = mine.rows + 1, mine.tokens + twin.allocation.capacity_tokens
            assert isinstance(twin.request.state, Active)
            at = twin.request.state.progress
            found = at.num_computed, at.slot, at.num_scheduled, at.scheduled_slot
            assert (*found, at.sampling_in_flight) == twin.numbers()
        assert running.held == held
        assert np.count_nonzero(self.progress.holders) == len(twins)


def assert_same_rows(answers: AnswerRows, rows: list[Row]) -> None:
    found = [
        (item.request, item.start, item.stop, item.read_index, item.write_index, item.num_sampled)
        for item in answers.sequences()
    ]
    assert found == [
        (row.twin.request, row.start, row.stop, row.read, row.write, row.draws) for row in rows
    ]
    assert answers.tokens.sampled_before.tolist() == [row.at_index for row in rows]
    assert answers.row_limits.tolist() == [row.allocation.capacity_tokens for row in rows]


def test_columns_say_what_a_list_of_requests_does(fresh_seed: int) -> None:
    both = Both(fresh_seed)
    for _ in range(600):
        chance = both.rng.random()
        if chance < 0.2:
            both.join()
        elif chance < 0.25:
            both.leave()
        else:
            both.forward()
        both.compare()
    assert both.seen > 40


def test_progress_of_a_sequence_that_has_ended_cannot_be_read() -> None:
    table = ProgressTable(4)
    first = table.begin((2, 3), 10)
    with pytest.raises(AssertionError, match="has a sequence already"):
        table.begin((2,), 0)
    first.end()
    second = table.begin((2, 3), 20)
    with pytest.raises(AssertionError, match="has ended"):
        _ = first.num_computed
    assert second.num_computed == 20


def test_tokens_that_may_end_an_answer_are_those_of_all_who_run() -> None:
    stops = StopTokens()
    tokens = np.arange(8, dtype=np.int32)

    def found() -> list[int]:
        return tokens[stops.may_end(tokens)].tolist()

    assert found() == []
    names = [RequestId(name) for name in "abc"]
    for name, ids in zip(names, ({2, 5}, {2, 5}, {3, 2**40, -1}), strict=True):
        stops.add(name, frozenset(ids))
    assert found() == [2, 3, 5]
    assert stops.ends(names[0], 5) and not stops.ends(names[2], 5)
    stops.remove(names[0])
    assert found() == [2, 3, 5]
    stops.remove(names[1])
    assert found() == [3]


def test_a_length_that_no_column_holds_leaves_no_request_behind() -> None:
    """Such a request once came from a peer, was half stored, and could not be removed."""
    progress = ProgressTable(LANES)
    running = RunningRequests(progress)
    sampling = SamplingParams(max_new_tokens=2**31)
    request = Request(RequestId("r"), np.arange(5, dtype=np.int32), sampling, caller="a")
    allocation: Any = SimpleNamespace(working_slots=[0], pages=np.arange(1, dtype=np.int32))
    allocation.capacity_tokens = PAGE
    request.state = Prefilling(allocation, progress.begin((0,), 0, 0))
    with pytest.raises(OverflowError):
        running.add(request)
    assert len(running) == 0 and not running.held and not running.prompts
    running.discard(request)
