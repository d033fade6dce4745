"""A forward as plain data: its bytes, its numbers, and the plans rejected by a runner."""

import hashlib
import struct
import time
from contextlib import nullcontext
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.engine.forward_plan import (
    AT_INDEX,
    Fold,
    ForwardPlan,
    Guess,
    JoinedSequence,
    NewPages,
    PictureRows,
    PlanError,
    PlanGap,
    RowCheckpoint,
    RowFlag,
    RowPositions,
    UnknownBatchIndex,
    decode_plan,
    plan_rows,
)
from tasuki.engine.messages import RequestId
from tasuki.engine.pictures.row_store import PictureNumber
from tasuki.engine.progress import ProgressTable
from tasuki.engine.request import Decoding, Request
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.engine.runner.rows import SequenceStates, own_turns
from tasuki.engine.runner.rows import with_pictures as with_plan_pictures
from tasuki.engine.scheduling.queues import RunningRequests
from tasuki.engine.scheduling.scheduled_forward import ForwardPlanner, ScheduledForward
from tasuki.model.forward import Batch, PicturesUnsupported, RowSpan, SequenceSlice
from tasuki.model.ops.sampling.logit_adjustments import TokensBefore
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.arena import CopyKind, CopyOp
from tests.harness.engines import alone, prompt, tiny_parts
from tests.repository.test_architecture import ROOT, imports

ADJUSTED = {
    "temperature": 0.5,
    "top_k": 5,
    "min_p": 0.1,
    "presence_penalty": 0.5,
    "frequency_penalty": -0.25,
    "repetition_penalty": 1.1,
    "logit_bias": ((3, 0.1), (4, -100.0)),
    "min_tokens": 3,
    "max_new_tokens": 5,
    "bad_words": ((1,), (2, 3)),
    "allowed_token_ids": (1, 2, 3, 4),
    "stop_token_ids": (7,),
    "ignore_eos": True,
    "top_logprobs": 2,
}
BATCH = 256
CONTEXT = 100_000
MOST_BYTES = 32 * 1024
MOST_SECONDS = 0.3e-3


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def joined(batch_index: int, **sampling: Any) -> JoinedSequence:
    return JoinedSequence(
        batch_index, (batch_index, batch_index + 1), 1, SamplingParams(**sampling)
    )


def a_plan() -> ForwardPlan:
    """Return a plan that uses every field."""
    return ForwardPlan(
        7,
        copies=(CopyOp(CopyKind.PAGE, 5, 9), CopyOp(CopyKind.ZERO_SLOT, 3, 3)),
        left=(4, 6),
        joined=(
            joined(2, temperature=0.7, top_k=40, top_p=0.9, seed=-(2**63)),
            joined(4, seed=2**200),
            replace(
                joined(6, seed=-(2**200), **ADJUSTED), before=TokensBefore(ints(1, 5), ints(9))
            ),
            joined(8, top_logprobs=20),
        ),
        new_pages=(NewPages(2, ints(17, 18, 40)), NewPages(4, ints(3))),
        rows=plan_rows([2, 0, 3, 0, 1, 192, 1, 0, 4, 9, 1, 1, 0, 64, 1, AT_INDEX.value]),
        tokens=ints(100, 101, 102),
        checkpoints=(RowCheckpoint(0, 2, 11),),
        folds=(Fold(2, 1), Fold(8, 3)),
        guesses=(Guess(1, 4),),
        first_guesses=(Guess(0, 2),),
    )


def test_a_plan_is_its_bytes() -> None:
    for plan in (a_plan(), ForwardPlan(0)):
        np.testing.assert_equal(asdict(decode_plan(plan.encode())), asdict(plan))


def with_pictures() -> ForwardPlan:
    """Return a plan with pictures that uses every field."""
    plan = a_plan()
    first, second, *others = plan.joined
    positions = np.arange(12, dtype=np.int32).reshape(3, 4) - 1
    return replace(
        plan,
        joined=(first, replace(second, rope_delta=-9), *others),
        rope=(RowPositions(0, positions),),
        pictures=(
            PictureRows(0, 1, PictureNumber(2**40), 3, 2),
            PictureRows(2, 0, PictureNumber(0), 0, 1),
        ),
    )


def test_a_plan_with_pictures_is_its_bytes() -> None:
    plan = with_pictures()
    assert plan.has_pictures and not a_plan().has_pictures
    np.testing.assert_equal(asdict(decode_plan(plan.encode())), asdict(plan))
    for part in ({"rope": ()}, {"pictures": ()}, {"joined": a_plan().joined}):
        some = replace(plan, **part)
        assert some.has_pictures
        np.testing.assert_equal(asdict(decode_plan(some.encode())), asdict(some))


def test_a_plan_of_text_has_no_part_for_pictures() -> None:
    """Text pays no byte: a plan with pictures only has more behind."""
    plan, text = with_pictures(), a_plan().encode()
    assert plan.encode().startswith(text)
    assert hashlib.sha256(text).hexdigest() == (
        "b70e05e5f12a54f82e4511f2ad2c56365d90d1f77b96577c93448d639e995316"
    )


def with_ids() -> ForwardPlan:
    """Return a plan with the ids before two rows, one of them the first of its sequence."""
    plan = a_plan()
    first, second, *others = plan.joined
    before = replace(first, ids_before=(5, 248_044)), replace(second, ids_before=(7,))
    return replace(plan, joined=(*before, *others))


def test_a_plan_with_ids_before_rows_is_its_bytes() -> None:
    plan = with_ids()
    assert plan.has_extras and not plan.has_pictures and not a_plan().has_extras
    np.testing.assert_equal(asdict(decode_plan(plan.encode())), asdict(plan))
    assert plan.encode().startswith(a_plan().encode())
    pictured = replace(with_pictures(), joined=plan.joined)
    np.testing.assert_equal(asdict(decode_plan(pictured.encode())), asdict(pictured))


def test_bytes_that_are_no_plan_are_refused() -> None:
    for data in (a_plan().encode(), with_pictures().encode(), with_ids().encode()):
        for broken in (b"", data[:20], data[:-1], data + b"\0"):
            with pytest.raises(PlanError):
                decode_plan(broken)


def test_pictures_outside_of_a_row_are_refused() -> None:
    rows = torch.zeros(4, 32)
    slices = [SequenceSlice([1, 2, 3], 5, [0], 0, 1)]
    fitting = PictureRows(0, 1, PictureNumber(0), 2, 2)
    plan = ForwardPlan(0, pictures=(fitting,))
    (found,) = with_plan_pictures(plan, slices, lambda number: rows, [0])
    assert [(span.first, len(span.rows)) for span in found.pictures] == [(1, 2)]
    for changes in ({"first": 3}, {"token": 2}, {"token": -1}, {"first": -2}, {"count": 5}):
        broken = replace(plan, pictures=(replace(fitting, **changes),))
        with pytest.raises(PlanError, match="plan 0 puts rows"):
            with_plan_pictures(broken, slices, lambda number: rows, [0])
    with pytest.raises(PlanError, match="this runner stores no rows"):
        with_plan_pictures(plan, slices, None, [0])
    short = replace(plan, rope=(RowPositions(0, np.zeros((3, 3), dtype=np.int32)),))
    with pytest.raises(PlanError, match="for 3 tokens"):
        with_plan_pictures(short, slices, lambda number: rows, [0])


def test_rotary_positions_of_a_plan_are_within_its_tokens() -> None:
    """An index into the table of angles that came over a wire is checked."""
    first = SequenceSlice([1, 2, 3], 0, [0], 0, 1)
    later = replace(first, start=5)

    def given(item: SequenceSlice, *positions: int) -> list[SequenceSlice]:
        axes = np.tile(np.array(positions, dtype=np.int32), (3, 1))
        plan = ForwardPlan(0, rope=(RowPositions(4, axes),))
        return with_plan_pictures(plan, [item], lambda number: torch.zeros(0), [4])

    assert given(first, -1, 0, 1, 1)[0].rope_positions is not None
    assert given(later, 0, 5, 6, 7)[0].rope_positions is not None
    for item, positions in (
        (first, (-1, 0, 1, 3)),
        (first, (-1, -1, 1, 2)),
        (first, (0, 0, 1, 2)),
        (later, (-1, 5, 6, 7)),
        (later, (4, 5, 6, 8)),
        (later, (5, 5, 6, 7)),
    ):
        with pytest.raises(PlanError, match="rope positions"):
            given(item, *positions)


def test_pictures_of_rows_that_are_not_there_are_refused() -> None:
    rows = torch.zeros(4, 8)
    slices = [SequenceSlice([1, 2, 3], 5, [0], 0, 1)] * 2
    for row in (0, 2, 7, -1):
        plan = ForwardPlan(0, pictures=(PictureRows(row, 0, PictureNumber(0), 0, 1),))
        with pytest.raises(PlanError, match="no prompt's"):
            with_plan_pictures(plan, slices, lambda number: rows, [1, 3])
    plan = ForwardPlan(0, pictures=(PictureRows(3, 1, PictureNumber(0), 0, 2),))
    one, other = with_plan_pictures(plan, slices, lambda number: rows, [1, 3])
    assert not one.pictures and other.pictures[0].first == 1
    for row in (-1, 2):
        with pytest.raises(PlanError, match="in row"):
            own_turns(ForwardPlan(0, pictures=(replace(plan.pictures[0], row=row),)), 2)


def test_a_delta_that_is_impossible_is_no_plan() -> None:
    for delta, message in ((1, "rope delta of 1"), (-4, "a rotary position below 0")):
        plan = prompt_plan([5, 6, 7])
        broken = replace(plan, joined=(replace(joined(0), rope_delta=delta),))
        with pytest.raises(PlanError, match=message):
            SequenceStates(8).apply(broken)


def test_a_gpu_without_a_tower_refuses_pictures() -> None:
    """Its operators would take them for text."""
    bind = pytest.importorskip("tasuki.model.backends.triton_backend").TritonBackend.bind
    for changes in ({"rope_delta": -3}, {"pictures": [RowSpan(0, torch.zeros(1, 32))]}):
        batch = Batch.pack([replace(SequenceSlice([1, 2], 5, [0], 0, 1), **changes)])
        with pytest.raises(PicturesUnsupported, match="--vision auto"):
            bind(SimpleNamespace(_axes=None), batch)


def test_sampling_that_no_row_could_hold_is_no_plan() -> None:
    data = ForwardPlan(0, joined=(joined(0, min_p=0.5, temperature=1.0),)).encode()
    half = struct.pack(">d", 0.5)
    assert data.count(half) == 1
    with pytest.raises(PlanError, match="min_p must be in"):
        decode_plan(data.replace(half, struct.pack(">d", 1.5)))


def answering(
    running: RunningRequests, progress: ProgressTable, batch_index: int, length: int
) -> None:
    """Add a decoding request whose last token is in no forward yet."""
    sampling = SamplingParams(seed=batch_index, max_new_tokens=1000)
    request = Request(RequestId(f"r{batch_index}"), np.zeros(length, np.int32), sampling)
    pages = np.arange(-(-(length + 1) // 64), dtype=np.int32)
    allocation: Any = SimpleNamespace(
        working_slots=[batch_index, batch_index + 1], pages=pages, capacity_tokens=64 * len(pages)
    )
    request.state = Decoding(allocation, progress.begin((batch_index, batch_index + 1), length - 1))
    running.add(request)


def next_forward(running: RunningRequests) -> ScheduledForward:
    """Add one token to each request, with one more page if it needs one."""
    for request in running:
        assert isinstance(request.state, Decoding)
        allocation: Any = request.state.allocation
        if request.expected_length > allocation.capacity_tokens:
            allocation.pages = np.append(allocation.pages, np.int32(len(allocation.pages)))
            allocation.capacity_tokens += 64
            running.grown(request, request.state)
        request.output.append(0)
    return ScheduledForward(running.schedule_next(running.answering()), ())


@pytest.mark.parametrize("spread", [1, 0], ids=["staggered", "all at a page's end"])
def test_a_decode_step_of_256_long_contexts_is_small_and_fast_to_encode(spread: int) -> None:
    progress = ProgressTable(2 * BATCH)
    running, planner = RunningRequests(progress), ForwardPlanner(progress)
    for row in range(BATCH):
        answering(running, progress, 2 * row, CONTEXT + 31 + spread * row)
    planner.plan(next_forward(running), ())
    sizes, grown, seconds = [], [], []
    for _ in range(100):
        plan = planner.plan(next_forward(running), ())
        best = float("inf")
        for _ in range(20):
            began = time.process_time()
            data = plan.encode()
            best = min(best, time.process_time() - began)
        seconds.append(best)
        sizes.append(len(data))
        grown.append(len(plan.new_pages))
    assert not plan.joined and not plan.left
    assert max(grown) == (BATCH if spread == 0 else BATCH // 64)
    assert max(sizes) < MOST_BYTES
    # The best of many: a busy machine makes any single one slow.
    assert min(seconds) < MOST_SECONDS
    assert seconds[int(np.argmax(grown))] < 10 * MOST_SECONDS


def runner() -> CpuRunner:
    parts = tiny_parts()
    parts.arena.bytes.fill_(0xFF)
    return CpuRunner(parts.model, parts.arena, parts.steps, parts.grammars)


def prompt_plan(tokens: list[int]) -> ForwardPlan:
    """Return a plan of the whole prompt in slots 0 and 1, on pages of otherwise unused slabs."""
    blocks = tiny_parts().layout.blocks_per_slab
    pages = ints(*(blocks * (2 + page) for page in range(4)))
    return ForwardPlan(
        0,
        copies=(CopyOp(CopyKind.ZERO_SLOT, 0, 0),),
        joined=(joined(0),),
        new_pages=(NewPages(0, pages),),
        rows=plan_rows([0, 0, len(tokens), 0, 1, 256, 1, 0]),
        tokens=ints(*tokens),
    )


def next_plan(number: int, most: int) -> ForwardPlan:
    """Return the plan of the sampled token. Only an upper limit of its position, `most`, is
    known."""
    read, write = number % 2, (number + 1) % 2
    flags = (AT_INDEX | RowFlag.DECODES).value
    return ForwardPlan(number, rows=plan_rows([0, most, 1, read, write, 256, 1, flags]))


def test_a_forward_is_planned_with_nothing_of_the_one_before_known() -> None:
    tokens = prompt(100)
    plans = [prompt_plan(tokens), *(next_plan(number, 200) for number in range(1, 10))]
    sent = [plan.encode() for plan in plans]
    follower = runner()
    results = [follower.launch(decode_plan(data)).result() for data in sent]
    assert [int(sampled.tokens[0]) for sampled in results] == alone(tokens, 10)


def test_a_plan_out_of_its_turn_is_refused_and_changes_nothing() -> None:
    tokens = prompt(100)
    follower = runner()
    first = follower.launch(prompt_plan(tokens)).result()
    for number in (0, 2, 5):
        with pytest.raises(PlanGap, match=f"plan {number} came where 1 was due"):
            follower.launch(next_plan(number, 200))
    second = follower.launch(next_plan(1, 200)).result()
    assert [int(sampled.tokens[0]) for sampled in (first, second)] == alone(tokens, 2)


ROW = [0, 0, 3, 0, 1, 64, 1, 0]


def changed(**columns: int) -> list[int]:
    names = ["batch_index", "position", "length", "read", "write", "limit", "num_sampled", "flags"]
    return [columns.get(name, value) for name, value in zip(names, ROW, strict=True)]


@pytest.mark.parametrize(
    ("row", "error", "why"),
    [
        (changed(batch_index=4), UnknownBatchIndex, "without a sequence"),
        (changed(batch_index=99), UnknownBatchIndex, "unknown batch indices"),
        (changed(batch_index=-1), UnknownBatchIndex, "unknown batch indices"),
        (changed(length=0), PlanError, "without tokens"),
        (changed(position=62), PlanError, "beyond its limit"),
        (changed(limit=128), PlanError, "beyond its pages"),
        (changed(read=2), PlanError, "a slot to read that it does not have"),
        (changed(write=-1), PlanError, "a slot to write that it does not have"),
        (changed(num_sampled=2), PlanError, "more sampled tokens"),
        (changed(flags=1), PlanError, "tokens missing at its batch index"),
        (changed(length=2), PlanError, "3 tokens for rows of 2"),
        (changed(flags=16, num_sampled=4), PlanError, "drafts without a token before them"),
    ],
)
def test_a_row_outside_of_what_its_sequence_has_is_refused(
    row: list[int], error: type[PlanError], why: str
) -> None:
    states = SequenceStates(8)
    pages = (NewPages(0, ints(5)),)
    plan = ForwardPlan(
        0, joined=(joined(0),), new_pages=pages, rows=plan_rows(row), tokens=ints(1, 2, 3)
    )
    with pytest.raises(error, match=why):
        states.apply(plan)


def test_guesses_stay_within_the_pages() -> None:
    for count, fits in ((61, True), (62, False)):
        states = SequenceStates(8)
        plan = ForwardPlan(
            0,
            joined=(joined(0),),
            new_pages=(NewPages(0, ints(5)),),
            rows=plan_rows(ROW),
            tokens=ints(1, 2, 3),
            guesses=(Guess(0, count),),
        )
        with nullcontext() if fits else pytest.raises(PlanError, match="guesses beyond its pages"):
            states.apply(plan)


@pytest.mark.parametrize(
    ("count", "flags", "fits"),
    [(2, RowFlag.VERIFIES.value, True), (1, RowFlag.VERIFIES.value, False), (2, 0, False)],
)
def test_first_guesses_stand_for_all_drafts_of_a_row(count: int, flags: int, fits: bool) -> None:
    states = SequenceStates(8)
    plan = ForwardPlan(
        0,
        joined=(joined(0),),
        new_pages=(NewPages(0, ints(5)),),
        rows=plan_rows([0, 0, 3, 0, 1, 64, 3 if flags else 1, flags]),
        tokens=ints(1, 0, 0),
        first_guesses=(Guess(0, count),),
    )
    with nullcontext() if fits else pytest.raises(PlanError, match="guesses without a place"):
        states.apply(plan)


def test_a_lane_is_joined_once_and_left_once() -> None:
    states = SequenceStates(8)
    states.apply(ForwardPlan(0, joined=(joined(0),)))
    with pytest.raises(PlanError, match="joins before its last sequence has left"):
        states.apply(ForwardPlan(1, joined=(joined(0),)))
    states.apply(ForwardPlan(2, left=(0,), joined=(joined(0),)))
    states.apply(ForwardPlan(3, left=(0,)))
    with pytest.raises(UnknownBatchIndex):
        states.apply(ForwardPlan(4, left=(0,)))
    with pytest.raises(UnknownBatchIndex):
        states.apply(ForwardPlan(5, new_pages=(NewPages(0, ints(1)),)))


def test_a_lane_of_several_tokens_gives_a_row_its_length() -> None:
    states = SequenceStates(8)
    wide = JoinedSequence(0, (0, 1), 4, SamplingParams())
    pages = (NewPages(0, ints(5)),)
    draws_three = plan_rows([0, 0, 5, 0, 1, 64, 3, 0])
    states.apply(ForwardPlan(0, (), (), (wide,), pages, draws_three, ints(1, 2, 3, 4, 5)))
    rows = states.apply(ForwardPlan(1, rows=plan_rows([0, 30, 4, 1, 0, 64, 1, AT_INDEX.value])))
    assert (rows.starts.tolist(), rows.lengths.tolist(), rows.stops.tolist()) == ([5], [3], [8])
    with pytest.raises(PlanError, match="above its bound"):
        states.apply(ForwardPlan(2, rows=plan_rows([0, 7, 1, 1, 0, 64, 1, AT_INDEX.value])))


def test_what_a_row_verified_is_folded_once_and_no_further(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokens = prompt(100)
    for count, folds in ((0, 1), (4, 1), (2, 2)):
        follower = runner()
        first = follower.launch(prompt_plan(tokens)).result()
        row = plan_rows([0, 100, 3, 1, 0, 128, 3, RowFlag.VERIFIES.value])
        drafts = ints(int(first.tokens[0]), 1, 2)
        follower.launch(ForwardPlan(1, rows=row, tokens=drafts)).result()
        with pytest.raises(PlanError, match="batch index 0 are to be folded, which holds"):
            for number in range(folds):
                follower.launch(ForwardPlan(2 + number, folds=(Fold(0, count),)))
    follower = runner()
    follower.launch(prompt_plan(tokens))
    with pytest.raises(PlanError, match="which holds 0"):
        follower.launch(ForwardPlan(1, folds=(Fold(0, 1),)))


def test_runners_see_plans_and_memory_only() -> None:
    """Another process has neither requests nor the tree."""
    files = [*(ROOT / "engine" / "runner").glob("*.py"), ROOT / "engine" / "forward_plan.py"]
    seen = {name for path in files for name in imports(path)}
    assert {name[1:3] for name in seen if name[:2] == ("engine", "pictures")} == {
        ("pictures", "row_store")
    }
    rooms = {name[1] for name in seen if name[0] == "engine"}
    assert rooms == {"forward_plan", "runner", "pictures"}
    assert {name[1] for name in seen if name[0] == "pycache"} <= {"arena", "copies", "layout"}
