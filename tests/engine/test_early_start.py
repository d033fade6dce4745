"""A request decodes behind the layer barrier while its prompt lands: same tokens, sooner, and
nothing left of a step that was for nothing."""

import statistics
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from tasuki.engine import messages as m
from tasuki.engine.build import EngineParts
from tasuki.engine.config import EngineConfig
from tasuki.engine.role import Role
from tasuki.model.config import ModelConfig
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.random_weights import random_weights
from tasuki.pycache.arena import Arena
from tasuki.transfer.transports.loopback import Fault
from tasuki.transfer.windows.step_counter import StepCounter

from tests.harness.engine_pair import EnginePair, engine_pair
from tests.harness.engines import TINY, Lone, submit, tiny_parts
from tests.harness.waiting import until

LONG = 10.0
"""Seconds that any step is shorter than."""
NAME = "r"


def prompt(length: int) -> list[int]:
    return np.random.default_rng(length).integers(0, TINY["vocab_size"], length).tolist()


def fused(tokens: list[int], new: int, **changes: Any) -> list[int]:
    engine = Lone(EngineConfig(model="tiny", dtype="float32"), Role.FUSED, tiny_parts())
    engine.post(submit(NAME, tokens, new, **changes))
    engine.run()
    return engine.tokens(NAME)


@pytest.fixture
def pair() -> Iterator[EnginePair]:
    with engine_pair(tiny_parts(), tiny_parts()) as both:
        yield both
        both.decode.assert_at_rest()
        both.prefill.assert_at_rest()


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 150, 200])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tokens_are_those_of_one_process(
    pair: EnginePair, length: int, temperature: float
) -> None:
    sampling = SamplingParams(max_new_tokens=6, ignore_eos=True, temperature=temperature, seed=7)
    expected = fused(prompt(length), 6, sampling=sampling)
    pair.link.bytes_per_second = 2e6
    room = pair.hand_over(submit(NAME, prompt(length), 6, sampling=sampling))
    pair.ready(room, LONG)
    assert pair.decode.tokens(NAME) == expected[:1], "no token after the first before Done"
    pair.done(room)
    pair.step_ended()
    assert pair.decode.tokens(NAME) == expected[:2]
    pair.decode.run()
    assert pair.decode.tokens(NAME) == expected
    assert pair.early.counters == early(begun=1, joined=1)


def early(**counts: int) -> dict[str, int]:
    nothing = {"begun": 0, "unneeded": 0, "busy": 0, "joined": 0, "dropped": 0}
    return nothing | counts


def test_the_turns_end_is_the_state_behind_the_steps_token(pair: EnginePair) -> None:
    """An answer that ends with the step's token leaves the state the step wrote, and the next turn
    resumes from it."""
    first = prompt(100)
    room = pair.hand_over(submit(NAME, first, 2))
    pair.ready(room, LONG)
    pair.done(room)
    pair.step_ended()
    answer = pair.decode.finished(NAME)
    assert answer.usage.completion_tokens == 2
    turn = first + pair.decode.tokens(NAME) + prompt(9)
    pair.decode.post(m.PeersChanged(False))
    pair.decode.post(submit("next", turn, 4))
    pair.decode.run()
    hit = pair.decode.finished("next").usage.hit
    assert hit is not None and hit.usable_tokens == len(first) + 1
    assert pair.decode.tokens("next") == fused(turn, 4)


@pytest.mark.parametrize(
    ("tail", "why"), [(None, "nothing is known"), (0.0, "everything has landed")]
)
def test_without_a_tail_the_request_joins_at_done(
    pair: EnginePair, tail: float | None, why: str
) -> None:
    room = pair.hand_over(submit(NAME, prompt(70), 3))
    pair.ready(room, tail)
    assert pair.early.counters == early(unneeded=1), why
    pair.done(room)
    pair.decode.run()
    assert pair.decode.tokens(NAME) == fused(prompt(70), 3)


def test_a_tail_shorter_than_a_step_is_waited_for(pair: EnginePair) -> None:
    for number, tail in enumerate((LONG, 1e-6)):
        room = pair.hand_over(submit(str(number), prompt(70 + number), 3))
        pair.ready(room, tail)
        pair.done(room)
        if not number:
            pair.step_ended()
        pair.decode.run()
    assert pair.early.counters == early(begun=1, joined=1, unneeded=1)


def test_an_answer_of_one_token_takes_no_step(pair: EnginePair) -> None:
    room = pair.hand_over(submit("one", prompt(70), 1))
    pair.ready(room, LONG)
    pair.done(room)
    assert pair.decode.finished("one").reason is m.FinishReason.LENGTH
    stop = SamplingParams(max_new_tokens=5, stop_token_ids=(fused(prompt(80), 1)[0],))
    room = pair.hand_over(submit("stop", prompt(80), 5, sampling=stop))
    pair.ready(room, LONG)
    pair.done(room)
    assert pair.decode.finished("stop").reason is m.FinishReason.STOP
    assert pair.early.counters == early()


def test_a_flipped_bit_drops_the_step() -> None:
    """The step has computed on the bad bytes; nothing of it is seen, and the answer is right."""
    expected = fused(prompt(150), 5)
    with engine_pair(
        tiny_parts(), tiny_parts(), lambda index: Fault.FLIP_BIT if index == 9 else Fault.NONE
    ) as pair:
        room = pair.hand_over(submit(NAME, prompt(150), 5))
        pair.ready(room, LONG)
        lost = pair.done(room)
        assert isinstance(lost, m.HandoverFailed) and "window 9" in lost.reason
        pair.decode.post(m.WriterFenced(room.ticket.room))
        pair.step_ended()
        pair.decode.run()
        assert pair.decode.tokens(NAME) == expected
        assert pair.early.counters == early(begun=1, dropped=1)
        pair.decode.assert_at_rest()


def test_a_lost_room_shuts_the_barrier_and_the_step_leaves_nothing() -> None:
    expected = fused(prompt(150), 5)
    with engine_pair(
        tiny_parts(), tiny_parts(), lambda index: Fault.HOLD if index == 9 else Fault.NONE
    ) as pair:
        room = pair.hand_over(submit(NAME, prompt(150), 5))
        pair.ready(room, LONG)
        time.sleep(0.05)
        assert pair.said_by_steps.empty(), "the step waits for the window that is held"
        pair.decode.post(m.HandoverFailed(room.ticket.room, "the sender is gone"))
        pair.step_ended()
        pair.decode.post(m.WriterFenced(room.ticket.room))
        pair.decode.run()
        assert pair.decode.tokens(NAME) == expected
        assert pair.early.counters == early(begun=1, dropped=1)
        pair.decode.assert_at_rest()


class Stopped(Qwen35Model):
    """Stands inside its forward until it is let go."""

    def __init__(self, model: Qwen35Model) -> None:
        super().__init__(model.config, model.weights)
        self.inside, self.go = threading.Event(), threading.Event()

    def head(self, *args: Any) -> torch.Tensor:
        if threading.current_thread().name.startswith("tasuki-early-step"):
            self.inside.set()
            assert self.go.wait(30)
        return super().head(*args)


@pytest.fixture
def stopped() -> Iterator[tuple[EnginePair, Stopped]]:
    parts = tiny_parts()
    model = Stopped(parts.model)
    with engine_pair(tiny_parts(), replace(parts, model=model)) as both:
        try:
            yield both, model
        finally:
            model.go.set()
        both.decode.assert_at_rest()


def test_no_token_comes_before_both_done_and_the_step(stopped: tuple[EnginePair, Stopped]) -> None:
    pair, model = stopped
    room = pair.hand_over(submit(NAME, prompt(90), 4))
    pair.ready(room, LONG)
    assert model.inside.wait(30)
    pair.done(room)
    assert not pair.decode.step() and len(pair.decode.tokens(NAME)) == 1
    model.go.set()
    pair.step_ended()
    assert len(pair.decode.tokens(NAME)) == 2
    pair.decode.run()
    assert pair.decode.tokens(NAME) == fused(prompt(90), 4)


@pytest.mark.parametrize("after_done", [False, True])
def test_ids_of_a_cancelled_request_are_kept_until_the_step_has_ended(
    stopped: tuple[EnginePair, Stopped], after_done: bool
) -> None:
    pair, model = stopped
    room = pair.hand_over(submit(NAME, prompt(90), 4))
    pair.ready(room, LONG)
    assert model.inside.wait(30)
    if after_done:
        pair.done(room)
    pair.decode.post(m.Abort(m.RequestId(NAME)))
    pair.decode.post(m.WriterFenced(room.ticket.room))
    assert pair.decode.finished(NAME).reason is m.FinishReason.ABORT
    held = pair.decode.stats()
    assert held.pages["quarantined"] > 0 and held.slots["quarantined"] == 2
    model.go.set()
    pair.step_ended()
    assert pair.decode.stats().slots["quarantined"] == 0
    assert pair.early.counters == early(begun=1, dropped=1)


def test_a_step_that_breaks_leaves_the_request_to_the_batch() -> None:
    parts = tiny_parts()

    class Broken(Qwen35Model):
        def head(self, *args: Any) -> torch.Tensor:
            if threading.current_thread().name.startswith("tasuki-early-step"):
                raise RuntimeError("broken on purpose")
            return super().head(*args)

    model = Broken(parts.model.config, parts.model.weights)
    with engine_pair(tiny_parts(), replace(parts, model=model)) as pair:
        room = pair.hand_over(submit(NAME, prompt(90), 4))
        pair.ready(room, LONG)
        pair.done(room)
        pair.step_ended()
        pair.decode.run()
        assert pair.decode.tokens(NAME) == fused(prompt(90), 4)
        assert pair.early.counters == early(begun=1, dropped=1)
        pair.decode.assert_at_rest()


def test_one_step_at_a_time_and_the_batch_goes_on_beside_it(
    stopped: tuple[EnginePair, Stopped],
) -> None:
    pair, model = stopped
    first = pair.hand_over(submit("first", prompt(90), 3))
    pair.ready(first, LONG)
    assert model.inside.wait(30)
    second = pair.hand_over(submit("second", prompt(91), 3))
    pair.ready(second, LONG)
    pair.done(second)
    pair.decode.run()
    assert pair.decode.tokens("second") == fused(prompt(91), 3), "while a step of another runs"
    pair.done(first)
    model.go.set()
    pair.step_ended()
    pair.decode.run()
    assert pair.decode.tokens("first") == fused(prompt(90), 3)
    assert pair.early.counters == early(begun=1, busy=1, joined=1)


class Watched(Qwen35Model):
    """Notes the step's own processor time as each layer's gate has opened, and at the end."""

    def __init__(self, model: Qwen35Model) -> None:
        super().__init__(model.config, model.weights)
        self.steps: list[list[float]] = []

    def layers(self, tokens: Any, operators: Any, arena: Any, hooks: Any) -> Any:
        if not threading.current_thread().name.startswith("tasuki-early-step"):
            return super().layers(tokens, operators, arena, hooks)
        opened: list[float] = []
        self.steps.append(opened)

        class Noted:
            cache_written = hooks.cache_written
            after_layer = hooks.after_layer

            def before_layer(self, layer: int) -> None:
                hooks.before_layer(layer)
                opened.append(time.thread_time())

        return super().layers(tokens, operators, arena, Noted())

    def head(self, *args: Any) -> torch.Tensor:
        logits = super().head(*args)
        if threading.current_thread().name.startswith("tasuki-early-step"):
            self.steps[-1].append(time.thread_time())
        return logits


def test_nearly_all_of_the_step_is_over_when_the_last_window_lands() -> None:
    """However late the last window is, the second token waits for one layer after it and not for a
    step: a ratio of processor times of one run, which other processes do not change."""
    shape = TINY | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}

    def parts() -> EngineParts:
        config = ModelConfig.from_dict(shape)
        layout = config.cache_layout("float32", "float32", "float32")
        model = Watched(Qwen35Model(config, random_weights(config, 5, torch.float32)))
        return EngineParts(config, model, Arena(layout, 24), StepCounter())

    def last_of_a_room(index: int) -> Fault:
        return Fault.HOLD if index % 12 == 11 else Fault.NONE

    shares = []
    decode = parts()
    assert isinstance(decode.model, Watched)
    with engine_pair(parts(), decode, last_of_a_room) as pair:
        for number in range(3):
            name = str(number)
            room = pair.hand_over(submit(name, prompt(60 + number), 2))
            pair.ready(room, LONG)
            until(lambda number=number: len(decode.model.steps) > number, "waited in vain")
            opened = decode.model.steps[number]
            until(lambda opened=opened: len(opened) == 11, "waited in vain")
            until(lambda: bool(pair.fabric.held), "waited in vain")
            pair.fabric.let_go()
            pair.done(room)
            pair.step_ended()
            assert pair.decode.finished(name).usage.completion_tokens == 2
            first, *_, last, end = opened
            shares.append((end - last) / (end - first))
        assert pair.early.counters == early(begun=3, joined=3)
    assert statistics.median(shares) < 0.35, shares


def test_a_step_that_was_held_up_is_not_believed_for_ever(pair: EnginePair) -> None:
    room = pair.hand_over(submit("slow", prompt(70), 3))
    pair.ready(room, LONG)
    pair.done(room)
    pair.step_ended()
    pair.early._seconds[0] = 1.5 * LONG
    declined = 0
    while pair.early.counters["begun"] == 1:
        room = pair.hand_over(submit(str(declined), prompt(71 + declined), 2))
        pair.ready(room, LONG)
        declined += 1
        pair.done(room)
        if pair.early.counters["begun"] == 2:
            pair.step_ended()
        pair.decode.run()
        assert declined < 40
    assert pair.early.counters["unneeded"] > 1
