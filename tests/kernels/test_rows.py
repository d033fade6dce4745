"""The rows of a GPU's batch, filled on the host. Every possible request fits one, and a client with
wide sampling settings does not affect the others."""

import sys
from typing import Any

import numpy as np
import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.engine.forward_plan import ForwardPlan
from tasuki.engine.forward_stream import PlanStream
from tasuki.engine.runner import device_batch
from tasuki.engine.runner.base import SampledTokens
from tasuki.engine.runner.cpu_runner import CpuForward, CpuRunner
from tasuki.engine.runner.device_batch import DeviceBatch, SamplingTable
from tasuki.engine.runner.rows import ResolvedRows
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import (
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MIN_TEMPERATURE,
    MIN_TOP_P,
    SamplingParams,
)
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.openai.sampling import OPENAI_DEFAULTS, read_options
from tasuki.server.text.text_codec import TextCodec
from tests.harness.engines import Lone, submit, tiny_parts

VOCAB = 128
CODEC = TextCodec(VOCAB, 4096, None, None)


class Unpinned:
    """torch for device_batch, with memory available on a host without a GPU."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *shape: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.zeros(*shape, **options)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> DeviceBatch:
    monkeypatch.setattr(device_batch, "torch", Unpinned())
    return DeviceBatch(16, 99, torch.device("cpu"))


class Filling(CpuRunner):
    """A runner that computes on the host, after it has filled the rows for a GPU."""

    rows: DeviceBatch
    forwards = 0

    def launch(self, plan: ForwardPlan) -> CpuForward:
        if self.forwards == 0:
            self.sampling = SamplingTable(self._arena.slabs)
        for item in plan.joined:
            self.sampling.join(item.batch_index, item.sampling, 0)
        self.forwards += 1
        return super().launch(plan)

    def _compute(self, plan: ForwardPlan, rows: ResolvedRows) -> SampledTokens:
        self.rows.fill(rows.take(rows.num_sampled.nonzero()[0]), self.sampling)
        return super()._compute(plan, rows)


def filling(rows: DeviceBatch) -> tuple[Lone, Filling]:
    parts = tiny_parts()
    engine = Lone(EngineConfig(model="tiny", dtype="float32"), parts=parts)
    runner = Filling(parts.model, parts.arena, parts.steps, parts.grammars)
    runner.rows = rows
    engine.engine._plans = PlanStream(
        runner, engine.engine._cache, engine.engine._scheduler.progress
    )
    return engine, runner


def prompt(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, 70 + seed).tolist()


NAMES = [f"r{number}" for number in range(8)]


def answering(rows: DeviceBatch) -> tuple[Lone, Filling]:
    """Return an engine in the middle of eight answers."""
    engine, runner = filling(rows)
    for number, name in enumerate(NAMES):
        engine.post(submit(name, prompt(number), 40))
    engine.steps(12)
    return engine, runner


WIDE = [
    {"top_k": 2**31 - 1},
    {"top_k": 2**31},
    {"top_k": 2**32},
    {"top_k": sys.maxsize},
    {"top_p": 1e-300},
    {"temperature": 1e-300},
    {"temperature": MAX_TEMPERATURE, "seed": -(2**63)},
]


def test_requests_beside_those_of_wide_numbers_go_on_undisturbed(rows: DeviceBatch) -> None:
    (quiet, _), (engine, runner) = answering(rows), answering(rows)
    for number, asked in enumerate(WIDE):
        fields = RequestFields({"temperature": 1, **asked, "max_tokens": 5, "ignore_eos": True})
        sampling = read_options(fields, CODEC, 5, OPENAI_DEFAULTS, 0).sampling
        engine.post(submit(f"wide {number}", prompt(9), 5, sampling=sampling))
    quiet.run()
    engine.run()
    assert [len(engine.tokens(f"wide {number}")) for number in range(len(WIDE))] == [5] * len(WIDE)
    for name in NAMES:
        assert engine.tokens(name) == quiet.tokens(name)
        states = engine.phases(name)
        assert "Retracted" not in states and states.count("Prefilling") == 1, states
    assert runner.forwards > 40
    engine.assert_at_rest()


def test_a_row_holds_the_bounds_of_every_field(rows: DeviceBatch) -> None:
    bounds = [
        SamplingParams(temperature=MIN_TEMPERATURE, top_k=MAX_TOP_K, top_p=MIN_TOP_P),
        SamplingParams(temperature=MAX_TEMPERATURE, seed=2**200),
        SamplingParams(temperature=0.0, top_k=MAX_TOP_K),
    ]
    engine, _ = filling(rows)
    for number, sampling in enumerate(bounds):
        engine.post(submit(f"r{number}", prompt(number), 1, sampling=sampling))
    engine.step()
    draws = rows.draws(3)
    assert draws.top_k.tolist() == [MAX_TOP_K, 0, 0]
    heats = [np.float32(item.temperature) for item in bounds]
    assert draws.temperature.tolist() == heats and 0 < heats[0] < heats[1] < np.inf
    assert draws.top_p.tolist() == [np.float32(MIN_TOP_P), 1.0, 1.0] and draws.top_p[0] > 0
    assert draws.keys.tolist() == [list(noise_key(item.seed)) for item in bounds]


def test_a_forward_that_cannot_be_launched_costs_those_beside_it_no_prompt(
    rows: DeviceBatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any rejection by a runner, the other requests keep their states."""
    (quiet, _), (engine, _) = answering(rows), answering(rows)
    forwarded: list[int] = []
    fill = rows.fill
    bad = SamplingParams(max_new_tokens=5, temperature=MIN_TEMPERATURE, top_k=7)

    def refusing(items: ResolvedRows, sampling: SamplingTable) -> None:
        if (sampling.top_k[items.batch_indices] == bad.top_k).any():
            raise OverflowError("no row")
        forwarded.extend(items.lengths.tolist())
        fill(items, sampling)

    monkeypatch.setattr(rows, "fill", refusing)
    engine.post(submit("bad", prompt(9), 5, sampling=bad))
    engine.run()
    quiet.run()
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    assert "no row" in engine.rejected("bad").message
    for name in NAMES:
        assert engine.tokens(name) == quiet.tokens(name)
    # One token each in a forward: no prompt was computed again.
    assert set(forwarded) == {1}
    engine.assert_at_rest()
