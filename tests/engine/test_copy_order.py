"""No byte is read before the copy that writes it. The cache decides on copies. The runner runs them
before the next launch or message to another node. Memory is poisoned."""

import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.forward_stream import PlanStream
from tasuki.engine.progress import ProgressTable
from tasuki.engine.runner import cpu_runner
from tasuki.engine.runner.base import Event
from tasuki.engine.runner.cpu_runner import CpuForward, CpuRunner
from tasuki.model.forward import Batch
from tasuki.pycache.arena import run_copies
from tasuki.pycache.prefix_cache import HybridPrefixCache
from tests.harness.engines import (
    Lone,
    PoisonedCache,
    assert_answered_as_alone,
    prompt,
    submit,
    tiny_engine,
    tiny_parts,
)
from tests.harness.trees import joined, keep_value, slot_bytes, take_from, text


def test_an_allocation_moves_no_byte() -> None:
    cache = HybridPrefixCache(tiny_parts(arena_mib=0.5).arena)
    keep_value(cache, text(70, 7), 7.0)
    before = cache.arena.bytes.clone()
    allocation = take_from(cache, joined(text(70, 7), 1))
    assert allocation.cached_tokens == 70 and allocation.tail_copy is not None
    assert torch.equal(cache.arena.bytes, before)
    run_copies(cache.arena, cache.take_copies())
    assert bool((slot_bytes(cache, allocation.working_slots[0]) == 7.0).all())
    assert cache.take_copies() == ()


@pytest.mark.parametrize("released", range(1, 6))
def test_copies_of_a_lease_that_is_released_meanwhile_harm_nobody(released: int) -> None:
    """Its ids soon belong to another lease, whose copies wait behind its own."""
    cache = PoisonedCache(tiny_parts(arena_mib=0.5).arena)
    keep_value(cache, text(64, 7), 7.0)
    keep_value(cache, text(64, 8), 8.0)
    for turn in range(released):
        cache.release(take_from(cache, text(70, (7, 8, 9)[turn % 3])))
    held = {seed: take_from(cache, text(70, seed)) for seed in (8, 9, 7)}
    run_copies(cache.arena, cache.take_copies())
    for seed, value in ((7, 7.0), (8, 8.0), (9, 0.0)):
        allocation = held[seed]
        assert (allocation.cached_tokens == 64) == (value > 0)
        assert bool((slot_bytes(cache, allocation.working_slots[0]) == value).all()), seed


class Watching(CpuRunner):
    """A runner that logs the order of its calls."""

    def __init__(self, node: Lone) -> None:
        super().__init__(node.parts.model, node.parts.arena, node.parts.steps, node.parts.grammars)
        self.log: list[str] = []

    def launch(self, plan: ForwardPlan) -> CpuForward:
        self.log += ["copies"] * bool(plan.copies) + ["rows"] * bool(len(plan.rows))
        return super().launch(plan)

    def record_event(self) -> Event:
        self.log.append("event")
        return super().record_event()


def test_an_event_is_behind_the_copies_that_waited() -> None:
    node = tiny_engine()
    cache, runner = node.engine._cache, Watching(node)
    plans = PlanStream(runner, cache, ProgressTable(cache.arena.slabs))
    allocation = take_from(cache, text(70))
    assert bool(slot_bytes(cache, allocation.working_slots[0]).isnan().all())
    assert plans.record_event()()
    assert runner.log == ["copies", "event"]
    assert bool((slot_bytes(cache, allocation.working_slots[0]) == 0).all())
    plans.record_event()
    assert runner.log == ["copies", "event", "event"]


def test_nothing_waits_when_a_forward_reads_or_another_node_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A decode node over too small an arena has forks, moves, grants and retractions."""
    node = tiny_engine(
        slabs=14, role=Role.DECODE, prefill_chunk_tokens=64, local_prefill_tokens=200
    )
    cache = node.engine._cache
    forward, record = node.parts.model.forward, CpuRunner.record_event
    seen = {"forwards": 0, "events": 0, "copies": 0}

    def computing(batch: Batch, *rest: object) -> torch.Tensor:
        seen["forwards"] += 1
        assert not cache._copies
        return forward(batch, *rest)  # type: ignore[arg-type]

    def recording(self: CpuRunner) -> Event:
        seen["events"] += 1
        assert not cache._copies
        return record(self)

    def running(*args: object) -> None:
        seen["copies"] += 1
        run_copies(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(node.parts.model, "forward", computing)
    monkeypatch.setattr(CpuRunner, "record_event", recording)
    monkeypatch.setattr(cpu_runner, "run_copies", running)
    node.post(m.PeersChanged(True))
    shared = prompt(130)
    answers = {f"r{n}": shared + prompt(10 + 9 * n, n) for n in range(5)}
    node.post(submit("far", prompt(300, 99), 2))
    for name, tokens in answers.items():
        node.post(submit(name, tokens, 70))
    node.steps(12)
    transfers = [wanted.transfer_request.transfer_id for wanted in node.all_said(m.HandoverWanted)]
    for transfer_id in transfers:
        node.post(m.GrantWanted(transfer_id))
    for _ in range(2000):
        node.step()
        if all(len(node.tokens(name)) == 70 for name in answers):
            break
    assert_answered_as_alone(node, answers, 70)
    assert transfers and min(seen.values()) > 0


def test_a_copy_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: the poison of these tests shows a missing copy."""
    monkeypatch.setattr(cpu_runner, "run_copies", lambda arena, copies: None)
    node = tiny_engine()
    node.ask("r", prompt(70), 4)
    assert node.rejected("r").kind is m.ErrorKind.INTERNAL
