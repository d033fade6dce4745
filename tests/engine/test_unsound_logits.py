"""Logits that are no numbers end the request that drew from them, alone, with an error that says
so; nothing of it stays in the cache, and no client reads a logprob that is none."""

import math
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from tasuki.engine import messages as m
from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.model.batch import Batch
from tasuki.model.qwen3_5 import Qwen35Model

from tests.engine.test_engine import alone, lone, prompt
from tests.harness.engine_pair import engine_pair
from tests.harness.engines import Lone, submit, tiny_parts

GOOD = {f"good-{number}": prompt(40 + 37 * number, number) for number in range(3)}
BAD = prompt(300, 9)

Spoil = Callable[[torch.Tensor], None]


def nan_row(row: torch.Tensor) -> None:
    row.fill_(math.nan)


def one_nan(row: torch.Tensor) -> None:
    row[77] = math.nan


def one_infinite(row: torch.Tensor) -> None:
    row[3] = math.inf


def spoil_from(engine: Lone, position: int, spoil: Spoil = nan_row) -> None:
    """From now on logits of tokens at or behind the position are spoiled."""
    forward = engine.parts.model.forward

    def spoiling(batch: Batch, *rest: Any) -> torch.Tensor:
        logits = forward(batch, *rest)
        ends = batch.positions[batch.cu_seqlens[1:].long() - 1]
        for row, end in enumerate(ends.tolist()):
            if end >= position:
                spoil(logits[row])
        return logits

    engine.parts.model.forward = spoiling  # type: ignore[method-assign]


def assert_ended_unsound(engine: Lone, name: str) -> None:
    error = engine.rejected(name)
    assert error.kind is m.ErrorKind.INTERNAL
    assert "logits were NaN" in error.message
    told = [said for said in engine.said if isinstance(said, m.TokenOut | m.PrefillToken)]
    assert all(math.isfinite(token.logprob) and not math.isnan(token.margin) for token in told)


@pytest.mark.parametrize("spoil", [nan_row, one_nan, one_infinite])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("answered", [0, 5])
def test_the_request_ends_alone(answered: int, temperature: float, spoil: Spoil) -> None:
    engine = lone(prefill_chunk_tokens=256)
    spoil_from(engine, len(BAD) - 1 + answered, spoil)
    bad = submit("bad", BAD, 30)
    bad = replace(bad, sampling=replace(bad.sampling, temperature=temperature))
    engine.post(bad)
    for name, tokens in GOOD.items():
        engine.post(submit(name, tokens, 30))
    engine.run()
    assert_ended_unsound(engine, "bad")
    assert len(engine.tokens("bad")) == answered
    for name, tokens in GOOD.items():
        assert engine.tokens(name) == alone(tokens, 30), name
        states = [mark.state for mark in engine.finished(name).life]
        assert "Retracted" not in states
    engine.assert_at_rest()


def test_nothing_of_the_forward_that_spoiled_stays_in_the_cache() -> None:
    engine = lone(prefill_chunk_tokens=512)
    forward = engine.parts.model.forward
    spoil_from(engine, len(BAD) - 1)
    engine.post(submit("bad", BAD, 3, marks=(64, 128)))
    engine.run()
    assert_ended_unsound(engine, "bad")
    engine.parts.model.forward = forward  # type: ignore[method-assign]
    engine.post(submit("again", BAD, 3))
    engine.run()
    hit = engine.finished("again").usage.hit
    assert hit is not None and hit.usable_tokens == hit.kv_tokens == 0
    assert engine.tokens("again") == alone(BAD, 3)
    engine.assert_at_rest()


def test_a_prefill_node_refuses_the_room_and_the_prompt_is_computed_here() -> None:
    with engine_pair(tiny_parts(), tiny_parts()) as pair:
        spoil_from(pair.prefill, 0)
        pair.prefill.said.clear()
        with pytest.raises(IndexError):  # no first token comes
            pair.hand_over(submit("r", GOOD["good-1"], 6))
        (refused,) = [said for said in pair.prefill.said if isinstance(said, m.PrefillRefused)]
        assert "logits were NaN" in refused.error.message
        pair.decode.post(m.HandoverFailed(refused.room, refused.error.message))
        pair.decode.post(m.WriterFenced(refused.room))
        pair.prefill.post(m.PrefillEnd(refused.room))
        pair.decode.run()
        assert pair.decode.tokens("r") == alone(GOOD["good-1"], 6)
        pair.prefill.assert_at_rest()
        pair.decode.assert_at_rest()


@pytest.mark.parametrize("logprob", [math.nan, math.inf, -math.inf])
def test_a_first_token_whose_logprob_is_none_is_a_lost_hand_over(logprob: float) -> None:
    config = EngineConfig(model="tiny", dtype="float32", local_prefill_tokens=0)
    engine = Lone(config, Role.DECODE, tiny_parts())
    engine.post(m.PeersChanged(True))
    engine.post(submit("r", GOOD["good-1"], 6))
    engine.run()
    (wanted,) = [item for item in engine.said if isinstance(item, m.HandoverWanted)]
    room = wanted.ticket.room
    engine.post(m.GrantWanted(room))
    engine.run()
    hit = m.HitBreakdown(77, 0, 0, {}, None)
    engine.post(m.RemoteReady(room, 5, logprob, 1.0, hit, "prefill"))
    assert m.HandoverCancelled(room) in engine.said
    engine.post(m.WriterFenced(room))
    engine.run()
    assert engine.tokens("r") == alone(GOOD["good-1"], 6)
    engine.assert_at_rest()


class SpoiledEarly(Qwen35Model):
    """Its logits are numbers but for the early step's."""

    def head(self, *args: Any) -> torch.Tensor:
        logits = super().head(*args)
        if threading.current_thread().name.startswith("tasuki-early-step"):
            logits.fill_(math.nan)
        return logits


def test_an_early_step_of_no_numbers_ends_its_request() -> None:
    parts = tiny_parts()
    model = SpoiledEarly(parts.model.config, parts.model.weights)
    with engine_pair(tiny_parts(), replace(parts, model=model)) as pair:
        room = pair.hand_over(submit("r", prompt(90), 6))
        pair.ready(room, 10.0)
        pair.done(room)
        pair.step_ended()
        pair.decode.run()
        assert_ended_unsound(pair.decode, "r")
        assert len(pair.decode.tokens("r")) == 1
        pair.decode.assert_at_rest()
