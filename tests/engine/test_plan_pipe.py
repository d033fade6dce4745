"""Plans go through a pipe to a runner in another process, and it samples the same tokens."""

from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.forward_plan import ForwardPlan, RowFlag, decode_plan
from tasuki.engine.forward_stream import PlanStream
from tasuki.engine.runner.base import Event, SampledTokens
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.arena import CopyKind
from tests.harness.engines import Lone, prompt, submit, tiny_engine, tiny_parts
from tests.harness.fork_server import forked_peer
from tests.harness.waiting import HANG_SECONDS

SLABS = 18


def follow(channel: Connection) -> None:
    """Run every received plan, over memory full of NaN."""
    torch.set_num_threads(1)
    parts = tiny_parts(slabs=SLABS)
    parts.arena.bytes.fill_(0xFF)
    runner = CpuRunner(parts.model, parts.arena, parts.steps, parts.grammars)
    while data := channel.recv_bytes():
        channel.send(runner.launch(decode_plan(data)).result())


@dataclass(frozen=True)
class PipeForward:
    runner: "PipeRunner"
    number: int
    idle_seconds: float = 0.0
    busy_seconds: float = 0.0
    has_ended: bool = True

    def result(self) -> SampledTokens:
        return self.runner.reply(self.number)


class PipeRunner:
    """The engine's end: encoded plans go out, tokens come back."""

    def __init__(self, channel: Connection) -> None:
        self._channel = channel
        self._replies: list[SampledTokens] = []
        self.plans: list[ForwardPlan] = []
        self.ticks = 0

    def prepare(self) -> None:
        return None

    def record_event(self) -> Event:
        raise AssertionError("nothing leaves this node")

    def launch(self, plan: ForwardPlan) -> PipeForward:
        data = plan.encode()
        self.plans.append(decode_plan(data))
        self._channel.send_bytes(data)
        return PipeForward(self, plan.number)

    def reply(self, number: int) -> SampledTokens:
        while len(self._replies) <= number:
            assert self._channel.poll(120), "the follower is silent"
            self._replies.append(self._channel.recv())
        return self._replies[number]


@pytest.fixture
def pipe() -> Iterator[PipeRunner]:
    process, ours = forked_peer(follow)
    yield PipeRunner(ours)
    ours.send_bytes(b"")
    process.join(HANG_SECONDS)
    exitcode = process.exitcode
    process.kill()
    assert exitcode == 0


def engine() -> Lone:
    return tiny_engine(slabs=SLABS, prefill_chunk_tokens=64, max_batch=5)


def play(node: Lone) -> dict[str, list[int]]:
    """Run chunks, forks at a page and inside one, marks, stops, an abort, retractions,
    evictions."""
    first = prompt(150)
    sampled = SamplingParams(max_new_tokens=12, temperature=1.1, seed=7, top_k=30, ignore_eos=True)
    node.post(submit("a", first, 9))
    node.post(submit("b", first[:128] + prompt(30, 1), 12, sampling=sampled))
    node.steps(7)
    node.post(submit("c", prompt(70, 2), 30, marks=(64,)))
    node.post(submit("gone", prompt(40, 3), 30))
    node.steps(5)
    node.post(m.Abort(m.RequestId("gone")))
    node.run()
    # The next turn resumes inside a page; three tasks fork from one prefix; the arena is too small.
    turn = first + node.tokens("a") + prompt(20, 4)
    for number in range(4):
        node.post(submit(f"turn {number}", turn + prompt(1 + 30 * number, 5 + number), 60))
    node.run()
    node.assert_at_rest()
    names = ["a", "b", "c", *(f"turn {number}" for number in range(4))]
    return {name: node.tokens(name) for name in names}


def test_a_runner_in_another_process_draws_the_same_tokens(
    pipe: PipeRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = play(engine())
    node = engine()
    node.engine._plans = PlanStream(pipe, node.engine._cache, node.engine._scheduler.progress)
    memory = node.parts.arena.bytes

    def never(*args: object) -> None:
        raise AssertionError("the engine's own process computed")

    monkeypatch.setattr(node.parts.model, "forward", never)
    monkeypatch.setattr(torch.Tensor, "copy_", never)
    found = play(node)
    monkeypatch.undo()
    assert found == expected
    assert all(len(tokens) > 0 for tokens in expected.values())
    assert memory is node.parts.arena.bytes

    plans = pipe.plans
    assert [plan.number for plan in plans] == list(range(len(plans)))
    kinds = {copy.kind for plan in plans for copy in plan.copies}
    assert kinds == set(CopyKind)
    assert sum(len(plan.joined) for plan in plans) > len(expected), "nobody was retracted"
    assert any(plan.left for plan in plans) and any(plan.checkpoints for plan in plans)
    lengths = [plan.rows.lengths for plan in plans]
    assert any((length == 64).any() for length in lengths), "no prompt came in chunks"
    # While answers run, the engine plans without a token of the forward in flight.
    answering = [plan for plan in plans if len(plan.rows) and (plan.rows.flags != 0).all()]
    assert len(answering) > 20
    at_index = [plan for plan in answering if (plan.rows.flags & RowFlag.TOKENS_AT_INDEX).all()]
    assert all(len(plan.tokens) == 0 for plan in at_index) and len(at_index) > 20


def test_drafts_and_folds_go_to_another_process(pipe: PipeRunner) -> None:
    tokens = prompt(150)
    answer = engine().ask("r", tokens, 20)
    node = engine()
    plans = PlanStream(pipe, node.engine._cache, node.engine._scheduler.progress)
    node.engine._plans = node.engine._landing._plans = plans
    prediction = np.array([*answer[:9], 0, *answer[10:]], dtype=np.int32)
    assert node.ask("r", tokens, 20, prediction=prediction) == answer
    assert node.finished("r").usage.accepted_tokens > 10
    assert sum(len(plan.folds) for plan in pipe.plans) > 3
    turn = tokens + answer + prompt(20, 4)
    assert node.ask("turn", turn, 5) == engine().ask("turn", turn, 5)
    assert node.hit("turn").usable_tokens == 169
