"""Pictures on several ranks: golden tokens, pictures computed in turns, rows equal on all ranks,
failures of one rank's tower."""

import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.parallel.pictures import SharedRows
from tasuki.engine.parallel.ranks import RankLost
from tasuki.engine.request import Encoding
from tasuki.model.config_json import ModelConfigError
from tests.harness.broken_towers import NO_MEMORY, broken_ranks
from tests.harness.daemons import Node, flags
from tests.harness.engines import Lone
from tests.harness.goldens import BESIDE
from tests.harness.picture_answers import cached, chat, golden_messages
from tests.harness.picture_goldens import golden_cases, needs_goldens
from tests.harness.picture_prompts import ask, golden_case, golden_submit
from tests.harness.rank_engines import rank_engine
from tests.harness.running_nodes import HTTP, running
from tests.harness.tiny_pictures import assert_idle, encoder
from tests.harness.waiting import HANG_SECONDS

pytestmark = needs_goldens

DIVIDED = ("vision-dense", "vision-moe")
"""Sets whose heads two ranks divide."""


def shared(engine: Lone) -> SharedRows:
    rows = encoder(engine)._rows
    assert isinstance(rows, SharedRows)
    return rows


@contextmanager
def two_ranks(model: str, **changes: Any) -> Iterator[Lone]:
    with rank_engine(BESIDE / model, tensor_parallel=2, **changes) as engine:
        yield engine
        engine.assert_at_rest()
        assert_idle(engine)
        assert not shared(engine)._placed


def greedy(model: str, case: str) -> list[int]:
    return golden_case(model, case).values["greedy"]


def sets() -> list[object]:
    """Return pairs of a model and its cases: three of each, and with the slow mark all."""
    few = [(model, ("middle", "two", "text")) for model in DIVIDED]
    whole = [pytest.param(model, (), marks=pytest.mark.slow) for model in DIVIDED]
    return [*few, *whole]


@pytest.mark.parametrize(("model", "some"), sets())
def test_goldens_one_after_the_other_and_at_once(model: str, some: Sequence[str]) -> None:
    cases = some or [case for name, case in golden_cases() if name == model]
    drafts = {"speculate": "mtp+tree"}
    with two_ranks(model, prefill_chunk_tokens=64, **drafts) as engine:
        for case in cases:
            assert ask(engine, golden_submit(model, case)) == greedy(model, case), case
        encoder(engine).store.clear()
        engine.flush()
        for case in cases:
            engine.post(golden_submit(model, case, f"{case} at once"))
        engine.run()
        for case in cases:
            assert engine.tokens(f"{case} at once") == greedy(model, case), case
        # Pictures take turns.
        assert min(shared(engine).begun) > 1
        assert sum(shared(engine).begun) == encoder(engine).counts.encoded


def test_a_prompts_pictures_are_computed_beside_each_other() -> None:
    case = "odd"
    with two_ranks("vision-dense") as engine:
        rounds = 0
        towers = shared(engine)
        run = towers.round

        def counted() -> None:
            nonlocal rounds
            rounds += 1
            run()

        towers.round = counted  # type: ignore[method-assign]
        assert ask(engine, golden_submit("vision-dense", case)) == greedy("vision-dense", case)
        pictures = len({one.digest for one in golden_submit("vision-dense", case).pictures})
        assert pictures >= 4 and encoder(engine).counts.encoded == pictures
        # One rank alone would need as many rounds as blocks.
        assert rounds <= (pictures + 1) // 2 * towers._depth
        assert abs(towers.begun[0] - towers.begun[1]) <= 1


def test_a_small_budget_drops_rows_on_both_ranks() -> None:
    with two_ranks("vision-dense", prefill_chunk_tokens=64) as engine:
        store = encoder(engine).store
        most = max(one.run.tokens for one in golden_submit("vision-dense", "odd").pictures)
        store._budget = most * store._row_bytes
        for name in ("first", "second"):
            message = golden_submit("vision-dense", "odd", name)
            assert ask(engine, message) == greedy("vision-dense", "odd")
            engine.flush()


def test_an_abort_gives_a_picture_up_on_any_rank() -> None:
    with two_ranks("vision-dense") as engine:
        now = iter(range(0, 10**9, 3600))
        encoder(engine)._clock = lambda: float(next(now))
        for turn in range(3):
            name = f"gone {turn}"
            engine.post(golden_submit("vision-dense", "odd", name))
            engine.steps(2)
            (request,) = engine.engine._handover.requests
            assert isinstance(request.state, Encoding) and len(shared(engine)._placed) == 2
            engine.post(m.Abort(m.RequestId(name)))
            engine.run()
            assert not shared(engine)._placed and encoder(engine).store.nbytes == 0
        assert shared(engine).begun == [3, 3]
        assert ask(engine, golden_submit("vision-dense", "odd")) == greedy("vision-dense", "odd")


@pytest.mark.parametrize("count", [25, pytest.param(300, marks=pytest.mark.slow)])
def test_after_random_lives_no_rank_has_a_picture(count: int) -> None:
    random = np.random.default_rng(5)
    cases = ("two", "odd", "middle", "shrunk", "same", "text")
    with two_ranks("vision-dense", prefill_chunk_tokens=64, max_batch=4) as engine:
        store = encoder(engine).store
        store._budget = 160 * store._row_bytes
        names = []
        for number in range(count):
            case = cases[random.integers(len(cases))]
            names.append((f"{case} {number}", case))
            salt = bytes([random.integers(2)])
            engine.post(golden_submit("vision-dense", case, names[-1][0], salt=salt))
            engine.steps(int(random.integers(0, 6)))
            if random.random() < 0.3:
                gone, _ = names[random.integers(len(names))]
                engine.post(m.Abort(m.RequestId(gone)))
        engine.run()
        assert not engine.all_said(m.Rejected)
        assert min(shared(engine).begun) > 0
        whole = [each for each in names if len(engine.tokens(each[0])) == len(greedy_of(each[1]))]
        assert len(whole) > count / 2
        for name, case in whole:
            assert engine.tokens(name) == greedy_of(case), name


def greedy_of(case: str) -> list[int]:
    return greedy("vision-dense", case)


@pytest.mark.parametrize("fault", ["begin", "run", "rows"])
def test_a_failed_tower_ends_its_requests_alone(fault: str) -> None:
    """The follower's tower fails on every picture, the leader's on none."""
    with two_ranks("vision-dense", start=partial(broken_ranks, fault)) as engine:
        assert ask(engine, golden_submit("vision-dense", "middle")) == greedy(
            "vision-dense", "middle"
        )
        engine.post(golden_submit("vision-dense", "two"))
        engine.post(golden_submit("vision-dense", "text"))
        engine.run()
        error = engine.rejected("two")
        assert error.kind is m.ErrorKind.INTERNAL
        assert ("NaN or infinite" if fault == "rows" else NO_MEMORY) in error.message
        assert engine.tokens("text") == greedy("vision-dense", "text")
        assert encoder(engine).store.reservations == 0


def test_a_lost_rank_ends_the_node_at_once() -> None:
    """The follower is killed with a picture in its tower."""
    with pytest.raises(RankLost, match="rank 1"), two_ranks("vision-dense") as engine:
        now = iter(range(0, 10**9, 3600))
        encoder(engine)._clock = lambda: float(next(now))
        engine.post(golden_submit("vision-dense", "odd"))
        engine.steps(2)
        assert {placed.rank for placed in shared(engine)._placed.values()} == {0, 1}
        assert engine.parts.ranks is not None
        os.kill(engine.parts.ranks.pids[0], signal.SIGKILL)
        began = time.monotonic()
        try:
            engine.run()
        finally:
            assert time.monotonic() - began < HANG_SECONDS


def test_heads_that_two_ranks_do_not_divide_are_refused() -> None:
    with (
        pytest.raises(ModelConfigError, match="heads"),
        rank_engine(BESIDE / "vision-dense-d128", tensor_parallel=2),
    ):
        pass


def test_a_node_of_several_ranks_may_leave_the_tower_out() -> None:
    with rank_engine(BESIDE / "vision-dense", tensor_parallel=2, vision="off") as engine:
        engine.post(golden_submit("vision-dense", "middle"))
        assert "this node sees none" in engine.rejected("middle").message


@pytest.mark.slow
def test_pictures_come_in_over_http() -> None:
    folder = BESIDE / "vision-dense"
    ranks = ("--tensor-parallel", "2")
    ended = 0
    with running(Node("serve", *flags(folder, arena_mib=32), *HTTP, *ranks)) as node:
        for name in ("middle", "turn2", "turn3"):
            case = golden_case("vision-dense", name).values
            reply = chat(node, golden_messages(case, folder), len(case["greedy"]))
            assert reply.status == 200, reply.body
            assert reply.json["choices"][0]["token_ids"] == case["greedy"]
            assert cached(reply) == ended
            ended = len(case["prompt"]) + len(case["greedy"]) - 1
