"""The rows of a batch as a GPU gets them, filled on the host: every request that exists fits one,
and one that clients draw wide leaves those beside it alone."""

import sys
from typing import Any

import numpy as np
import pytest
import torch
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.engine.forward_plan import Work
from tasuki.engine.runner import device_batch as device_rows
from tasuki.engine.runner.base import HostFlight, HostRunner
from tasuki.engine.runner.device_batch import DeviceRows
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import (
    MAX_TEMPERATURE,
    MAX_TOP_K,
    MIN_TEMPERATURE,
    MIN_TOP_P,
    SamplingParams,
)
from tasuki.server.openai.request_fields import RequestFields
from tasuki.server.openai.sampling import read_options
from tasuki.server.text.text_codec import TextCodec

from tests.harness.engines import Lone, submit, tiny_parts

VOCAB = 128
CODEC = TextCodec(VOCAB, 4096, None, None)


class Unpinned:
    """torch for device_rows, with memory that a host without a GPU can give."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def zeros(self, *shape: int, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        return torch.zeros(*shape, **options)


@pytest.fixture
def rows(monkeypatch: pytest.MonkeyPatch) -> DeviceRows:
    monkeypatch.setattr(device_rows, "torch", Unpinned())
    return DeviceRows(16, 99, torch.device("cpu"))


class Filling(HostRunner):
    """Computes on the host, after it has filled the rows that a GPU would get."""

    rows: DeviceRows
    forwards = 0

    def launch(self, work: Any) -> HostFlight:
        self.rows.fill([item for item in work if item.samples])
        self.forwards += 1
        return super().launch(work)


def filling(rows: DeviceRows) -> tuple[Lone, Filling]:
    parts = tiny_parts()
    engine = Lone(EngineConfig(model="tiny", dtype="float32"), parts=parts)
    runner = Filling(parts.model, parts.arena, parts.steps)
    runner.rows = rows
    engine.engine._runner = runner
    return engine, runner


def prompt(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, 70 + seed).tolist()


WIDE = [
    {"top_k": 2**31 - 1},
    {"top_k": 2**31},
    {"top_k": 2**32},
    {"top_k": sys.maxsize},
    {"top_p": 1e-300},
    {"temperature": 1e-300},
    {"temperature": MAX_TEMPERATURE, "seed": -(2**63)},
]


@pytest.mark.parametrize("asked", WIDE, ids=str)
def test_requests_beside_one_of_a_wide_number_go_on_undisturbed(
    rows: DeviceRows, asked: dict[str, float]
) -> None:
    quiet, _ = filling(rows)
    engine, runner = filling(rows)
    names = [f"r{number}" for number in range(8)]
    for node in (quiet, engine):
        for number, name in enumerate(names):
            node.post(submit(name, prompt(number), 40))
        for _ in range(12):
            node.step()
    fields = RequestFields({"temperature": 1, **asked, "max_tokens": 5, "ignore_eos": True})
    sampling = read_options(fields, CODEC, 5).sampling
    engine.post(submit("wide", prompt(9), 5, sampling=sampling))
    quiet.run()
    engine.run()
    assert len(engine.tokens("wide")) == 5
    for name in names:
        assert engine.tokens(name) == quiet.tokens(name)
        states = [mark.state for mark in engine.finished(name).life]
        assert "Retracted" not in states and states.count("Prefilling") == 1, states
    assert runner.forwards > 40
    engine.assert_at_rest()


def test_a_row_holds_the_bounds_of_every_field(rows: DeviceRows) -> None:
    bounds = [
        SamplingParams(temperature=MIN_TEMPERATURE, top_k=MAX_TOP_K, top_p=MIN_TOP_P),
        SamplingParams(temperature=MAX_TEMPERATURE, seed=2**200),
        SamplingParams(temperature=0.0, top_k=MAX_TOP_K),
    ]
    engine, runner = filling(rows)
    work: list[Work] = []
    launch = runner.launch
    runner.launch = lambda items: (work.extend(items), launch(items))[1]  # type: ignore[assignment]
    for number, sampling in enumerate(bounds):
        engine.post(submit(f"r{number}", prompt(number), 1, sampling=sampling))
    engine.step()
    assert [item.request.sampling for item in work] == bounds
    rows.fill(work)
    draws = rows.draws(3)
    assert draws.top_k.tolist() == [MAX_TOP_K, 0, 0]
    heats = [np.float32(item.temperature) for item in bounds]
    assert draws.temperature.tolist() == heats and 0 < heats[0] < heats[1] < np.inf
    assert draws.top_p.tolist() == [np.float32(MIN_TOP_P), 1.0, 1.0] and draws.top_p[0] > 0
    assert draws.keys.tolist() == [list(noise_key(item.seed)) for item in bounds]


def test_a_forward_that_cannot_be_launched_costs_those_beside_it_no_prompt(
    rows: DeviceRows, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever it is that a runner refuses: the others keep the state that they had landed."""
    engine, _ = filling(rows)
    quiet, _ = filling(rows)
    names = [f"r{number}" for number in range(8)]
    for node in (quiet, engine):
        for number, name in enumerate(names):
            node.post(submit(name, prompt(number), 40))
        for _ in range(12):
            node.step()
    forwarded: list[tuple[str, int]] = []
    fill = rows.fill

    def refusing(work: list[Work]) -> None:
        if any(item.request.id == "bad" for item in work):
            raise OverflowError("no row")
        forwarded.extend((item.request.id, item.stop - item.start) for item in work)
        fill(work)

    monkeypatch.setattr(rows, "fill", refusing)
    engine.post(submit("bad", prompt(9), 5))
    engine.run()
    quiet.run()
    assert engine.rejected("bad").kind is m.ErrorKind.INTERNAL
    assert "no row" in engine.rejected("bad").message
    for name in names:
        assert engine.tokens(name) == quiet.tokens(name)
    # One token each a forward: nobody's prompt was read again.
    assert {count for _, count in forwarded} == {1}
    engine.assert_at_rest()
