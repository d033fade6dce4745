"""A request decodes behind the layer barrier while its prompt arrives: the same tokens, sooner, and
nothing left of a wasted step. However a step ends, its ids are kept until its stream has been
waited for. A step given up by the host may still run on the device."""

import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from tasuki.engine import messages as m
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.roles.early_steps import EarlySteps
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import random_weights
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.pycache.arena import Arena
from tasuki.transfer.chunks.chunk import StepCounter
from tasuki.transfer.transports.loopback import Fault, Faults, no_faults
from tests.harness.engine_pair import (
    LONG,
    EnginePair,
    OneTransfer,
    StoppedHead,
    broken_head,
    engine_pair,
    is_early_step,
    with_early_head,
)
from tests.harness.engines import TINY, alone, prompt, submit, tiny_parts
from tests.harness.qwen35 import config_of
from tests.harness.waiting import HANG_SECONDS, until

NAME = "r"


def early(**counts: int) -> dict[str, int]:
    nothing = {"begun": 0, "unneeded": 0, "busy": 0, "joined": 0, "dropped": 0}
    return nothing | counts


def in_the_tenth_chunk(fault: Fault) -> Faults:
    return lambda index: fault if index == 9 else Fault.NONE


@pytest.mark.parametrize("length", [1, 63, 64, 65, 128, 150, 200])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_the_tokens_are_those_of_one_process(
    pair: EnginePair, length: int, temperature: float
) -> None:
    sampling = SamplingParams(max_new_tokens=6, ignore_eos=True, temperature=temperature, seed=7)
    expected = alone(prompt(length), 6, sampling=sampling)
    pair.link.bytes_per_second = 2e6
    transfer = pair.begin(submit(NAME, prompt(length), 6, sampling=sampling))
    assert pair.decode.tokens(NAME) == expected[:1], "no token after the first before Done"
    pair.done(transfer)
    pair.step_ended()
    assert pair.decode.tokens(NAME) == expected[:2]
    pair.decode.run()
    assert pair.decode.tokens(NAME) == expected
    assert pair.early.counters == early(begun=1, joined=1)


def test_the_turns_end_is_the_state_behind_the_steps_token(pair: EnginePair) -> None:
    """An answer that ends with the step's token leaves the state written by the step, and the next
    turn resumes from it."""
    first = prompt(100)
    pair.join(pair.begin(submit(NAME, first, 2)))
    assert pair.decode.finished(NAME).usage.completion_tokens == 2
    turn = first + pair.decode.tokens(NAME) + prompt(9, 9)
    pair.decode.post(m.PeersChanged(False))
    assert pair.decode.ask("next", turn, 4) == alone(turn, 4)
    assert pair.decode.hit("next").usable_tokens == len(first) + 1


@pytest.mark.parametrize("tail", [None, 0.0], ids=["nothing is known", "everything has landed"])
def test_without_a_tail_the_request_joins_at_done(pair: EnginePair, tail: float | None) -> None:
    transfer = pair.hand_over(submit(NAME, prompt(70), 3))
    pair.ready(transfer, tail)
    assert pair.early.counters == early(unneeded=1)
    pair.done(transfer)
    pair.decode.run()
    assert pair.decode.tokens(NAME) == alone(prompt(70), 3)


def test_a_tail_shorter_than_a_step_is_waited_for(pair: EnginePair) -> None:
    pair.join(pair.begin(submit("0", prompt(70), 3)))
    transfer = pair.hand_over(submit("1", prompt(71, 1), 3))
    pair.ready(transfer, 1e-6)
    pair.done(transfer)
    pair.decode.run()
    assert pair.early.counters == early(begun=1, joined=1, unneeded=1)


def test_an_answer_of_one_token_takes_no_step(pair: EnginePair) -> None:
    first = alone(prompt(80, 1), 1)[0]
    stop = SamplingParams(max_new_tokens=5, stop_token_ids=(first,))
    for asked, reason in (
        (submit("one", prompt(70), 1), m.FinishReason.LENGTH),
        (submit("stop", prompt(80, 1), 5, sampling=stop), m.FinishReason.STOP),
    ):
        transfer = pair.begin(asked)
        assert pair.decode.finished(asked.request_id).reason is reason
        pair.done(transfer)
        # The writer of a cancelled transfer is fenced. For one never granted the fence means
        # nothing.
        pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
    assert pair.early.counters == early()


def test_a_flipped_bit_drops_the_step() -> None:
    """The step has computed on the bad bytes; nothing of it is seen, and the answer is right."""
    with engine_pair(tiny_parts(), tiny_parts(), in_the_tenth_chunk(Fault.FLIP_BIT)) as pair:
        transfer = pair.begin(submit(NAME, prompt(150), 5))
        lost = pair.done(transfer)
        assert isinstance(lost, m.HandoverFailed) and "layer chunk 9" in lost.reason
        pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
        pair.step_ended()
        pair.decode.run()
        assert pair.decode.tokens(NAME) == alone(prompt(150), 5)
        assert pair.early.counters == early(begun=1, dropped=1)
        pair.decode.assert_at_rest()


def test_a_lost_room_shuts_the_barrier_and_the_step_leaves_nothing() -> None:
    with engine_pair(tiny_parts(), tiny_parts(), in_the_tenth_chunk(Fault.HOLD)) as pair:
        transfer = pair.begin(submit(NAME, prompt(150), 5))
        time.sleep(0.05)
        assert pair.said_by_steps.empty(), "the step waits for the window that is held"
        pair.decode.post(
            m.HandoverFailed(transfer.transfer_request.transfer_id, "the sender is gone")
        )
        pair.step_ended()
        pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
        pair.decode.run()
        assert pair.decode.tokens(NAME) == alone(prompt(150), 5)
        assert pair.early.counters == early(begun=1, dropped=1)
        pair.decode.assert_at_rest()


@pytest.fixture
def stopped() -> Iterator[tuple[EnginePair, StoppedHead]]:
    head = StoppedHead()
    with engine_pair(tiny_parts(), with_early_head(tiny_parts(), head)) as both:
        try:
            yield both, head
        finally:
            head.go.set()
        both.decode.assert_at_rest()


def test_no_token_comes_before_both_done_and_the_step(
    stopped: tuple[EnginePair, StoppedHead],
) -> None:
    pair, head = stopped
    transfer = pair.begin(submit(NAME, prompt(90), 4))
    assert head.inside.wait(HANG_SECONDS)
    pair.done(transfer)
    assert not pair.decode.step() and len(pair.decode.tokens(NAME)) == 1
    head.go.set()
    pair.step_ended()
    assert len(pair.decode.tokens(NAME)) == 2
    pair.decode.run()
    assert pair.decode.tokens(NAME) == alone(prompt(90), 4)


@pytest.mark.parametrize("after_done", [False, True])
def test_ids_of_a_cancelled_request_are_kept_until_the_step_has_ended(
    stopped: tuple[EnginePair, StoppedHead], after_done: bool
) -> None:
    pair, head = stopped
    transfer = pair.begin(submit(NAME, prompt(90), 4))
    assert head.inside.wait(HANG_SECONDS)
    if after_done:
        pair.done(transfer)
    pair.decode.post(m.Abort(m.RequestId(NAME)))
    pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
    assert pair.decode.finished(NAME).reason is m.FinishReason.ABORT
    held = pair.decode.stats()
    assert held.pages["quarantined"] > 0 and held.slots["quarantined"] == 2
    head.go.set()
    pair.step_ended()
    assert pair.decode.stats().slots["quarantined"] == 0
    assert pair.early.counters == early(begun=1, dropped=1)


def test_a_step_that_breaks_leaves_the_request_to_the_batch() -> None:
    with engine_pair(tiny_parts(), with_early_head(tiny_parts(), broken_head)) as pair:
        pair.join(pair.begin(submit(NAME, prompt(90), 4)))
        assert pair.decode.tokens(NAME) == alone(prompt(90), 4)
        assert pair.early.counters == early(begun=1, dropped=1)
        pair.decode.assert_at_rest()


def test_one_step_at_a_time_and_the_batch_goes_on_beside_it(
    stopped: tuple[EnginePair, StoppedHead],
) -> None:
    pair, head = stopped
    first = pair.begin(submit("first", prompt(90), 3))
    assert head.inside.wait(HANG_SECONDS)
    pair.done(pair.begin(submit("second", prompt(91, 1), 3)))
    pair.decode.run()
    assert pair.decode.tokens("second") == alone(prompt(91, 1), 3), "while a step of another runs"
    head.go.set()
    pair.join(first)
    assert pair.decode.tokens("first") == alone(prompt(90), 3)
    assert pair.early.counters == early(begun=1, busy=1, joined=1)


class Watched(Qwen35Model):
    """Notes the step's own processor time as each layer's gate has opened, and at the end."""

    def __init__(self, model: Qwen35Model) -> None:
        super().__init__(model.config, model.weights)
        self.steps: list[list[float]] = []

    def layers(self, tokens: Any, operators: Any, arena: Any, hooks: Any, *more: Any) -> Any:
        if not is_early_step():
            return super().layers(tokens, operators, arena, hooks, *more)
        opened: list[float] = []
        self.steps.append(opened)

        class Noted:
            mixer_inputs = hooks.mixer_inputs
            cache_written = hooks.cache_written
            after_layer = hooks.after_layer

            def before_layer(self, layer: int) -> None:
                hooks.before_layer(layer)
                opened.append(time.thread_time())

        return super().layers(tokens, operators, arena, Noted(), *more)

    def head(self, *args: Any) -> torch.Tensor:
        logits = super().head(*args)
        if is_early_step():
            self.steps[-1].append(time.thread_time())
        return logits


def test_nearly_all_of_the_step_is_over_when_the_last_window_lands() -> None:
    """However late the last layer chunk is, the second token waits for one more layer and not for a
    step. The test compares processor times of one run, independent of other processes."""
    shape = TINY | {"hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 12}

    def parts() -> EngineParts:
        config = config_of(shape)
        layout = config.cache_layout("float32", "float32", "float32")
        model = Watched(Qwen35Model(config, random_weights(config, 5, torch.float32)))
        return EngineParts(config, model, Arena(layout, 24), StepCounter())

    def last_of_a_transfer(index: int) -> Fault:
        return Fault.HOLD if index % 12 == 11 else Fault.NONE

    shares = []
    decode = parts()
    assert isinstance(decode.model, Watched)
    with engine_pair(parts(), decode, last_of_a_transfer) as pair:
        for number in range(3):
            name = str(number)
            transfer = pair.begin(submit(name, prompt(60 + number, number), 2))
            until(lambda number=number: len(decode.model.steps) > number, "waited in vain")
            opened = decode.model.steps[number]
            until(lambda opened=opened: len(opened) == 11, "waited in vain")
            until(lambda: bool(pair.fabric.held), "waited in vain")
            pair.fabric.let_go()
            pair.done(transfer)
            pair.step_ended()
            assert pair.decode.finished(name).usage.completion_tokens == 2
            first, *_, last, end = opened
            shares.append((end - last) / (end - first))
        assert pair.early.counters == early(begun=3, joined=3)
    assert statistics.median(shares) < 0.35, shares


def test_a_step_that_was_held_up_is_not_believed_for_ever(pair: EnginePair) -> None:
    pair.join(pair.begin(submit("slow", prompt(70), 3)))
    pair.early._seconds[0] = 1.5 * LONG
    declined = 0
    while pair.early.counters["begun"] == 1:
        transfer = pair.begin(submit(str(declined), prompt(71 + declined, declined), 2))
        declined += 1
        pair.done(transfer)
        if pair.early.counters["begun"] == 2:
            pair.step_ended()
        pair.decode.run()
        assert declined < 40
    assert pair.early.counters["unneeded"] > 1


@dataclass
class BusyStream:
    """A device that still works after its launching calls have returned."""

    did: list[str] = field(default_factory=list)
    waiting: threading.Event = field(default_factory=threading.Event)
    go: threading.Event = field(default_factory=threading.Event)
    breaks: bool = False

    @contextmanager
    def entered(self) -> Iterator[None]:
        self.did.append("entered")
        try:
            yield
        finally:
            self.did.append("left")

    def synchronize(self) -> None:
        self.waiting.set()
        assert self.go.wait(HANG_SECONDS)
        self.did.append("waited")
        if self.breaks:
            raise RuntimeError("the device is gone")


@contextmanager
def pair_with(
    stream: BusyStream, *, broken: bool = False, hold: bool = False
) -> Iterator[EnginePair]:
    """Yield a pair. hold: the tenth layer chunk does not arrive."""
    parts = tiny_parts()
    if broken:
        parts = with_early_head(parts, broken_head)
    faults = in_the_tenth_chunk(Fault.HOLD) if hold else no_faults
    with engine_pair(tiny_parts(), parts, faults) as pair:
        steps: EarlySteps = pair.early._steps
        steps._stream = stream
        try:
            yield pair
        finally:
            stream.go.set()
        if not stream.breaks:
            pair.decode.assert_at_rest()


def lose(pair: EnginePair, transfer: OneTransfer) -> None:
    pair.decode.post(m.HandoverFailed(transfer.transfer_request.transfer_id, "the sender is gone"))


def abort(pair: EnginePair, transfer: OneTransfer) -> None:
    pair.decode.post(m.Abort(m.RequestId(NAME)))


Give = Callable[[EnginePair, OneTransfer], None]


@pytest.mark.parametrize("give_up", [lose, abort])
@pytest.mark.parametrize("how", ["shut", "broke", "drew"])
def test_ids_are_kept_until_the_stream_was_waited_for(how: str, give_up: Give) -> None:
    stream = BusyStream()
    with pair_with(stream, broken=how == "broke", hold=how == "shut") as pair:
        transfer = pair.begin(submit(NAME, prompt(150), 5))
        if how == "shut":
            until(lambda: bool(pair.fabric.held), "waited in vain")
            give_up(pair, transfer)
        assert stream.waiting.wait(HANG_SECONDS)
        if how != "shut":
            give_up(pair, transfer)
        pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
        assert stream.did == ["entered", "left"]
        held = pair.decode.stats()
        assert held.slots["quarantined"] == 2 and held.pages["quarantined"] > 0
        assert pair.said_by_steps.empty(), "the engine was told before the stream was waited for"
        stream.go.set()
        pair.step_ended()
        assert stream.did == ["entered", "left", "waited"]
        assert pair.decode.stats().slots["quarantined"] == 0
        pair.decode.run()
        if give_up is lose:
            assert pair.decode.tokens(NAME) == alone(prompt(150), 5)


def test_a_step_joins_only_behind_its_stream() -> None:
    stream = BusyStream()
    with pair_with(stream) as pair:
        transfer = pair.begin(submit(NAME, prompt(90), 4))
        assert stream.waiting.wait(HANG_SECONDS)
        pair.done(transfer)
        assert not pair.decode.step() and len(pair.decode.tokens(NAME)) == 1
        stream.go.set()
        pair.step_ended()
        pair.decode.run()
        assert pair.decode.tokens(NAME) == alone(prompt(90), 4)


def test_a_stream_that_cannot_be_waited_for_keeps_its_ids_for_good() -> None:
    stream = BusyStream(breaks=True)
    with pair_with(stream) as pair:
        transfer = pair.begin(submit(NAME, prompt(150), 5))
        assert stream.waiting.wait(HANG_SECONDS)
        lose(pair, transfer)
        pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
        stream.go.set()
        pair.step_ended()
        assert pair.decode.stats().slots["quarantined"] == 2
        pair.decode.run()
        assert pair.decode.tokens(NAME) == alone(prompt(150), 5), "others are served without them"


def test_steps_share_a_stream() -> None:
    stream = BusyStream()
    stream.go.set()
    with pair_with(stream) as pair:
        for number in range(2):
            pair.join(pair.begin(submit(str(number), prompt(90 + number, number), 4)))
    assert stream.did == ["entered", "left", "waited"] * 2


def test_the_end_of_an_earlier_step_joins_no_room_whose_own_step_still_runs() -> None:
    """The word of a step's end may come after the next step has begun."""
    first, second = BusyStream(), BusyStream()
    first.go.set()
    with pair_with(second) as pair:
        pair.early._steps._stream = first
        one = pair.begin(submit("one", prompt(90), 4))
        ended = pair.said_by_steps.get(timeout=HANG_SECONDS)
        pair.early._steps._stream = second
        two = pair.begin(submit("two", prompt(91, 1), 4))
        assert second.waiting.wait(HANG_SECONDS)
        pair.done(two)
        pair.decode.post(ended)
        assert len(pair.decode.tokens("two")) == 1, "joined while its step ran"
        second.go.set()
        pair.join(one)
        assert pair.decode.tokens("one") == alone(prompt(90), 4)
        assert pair.decode.tokens("two") == alone(prompt(91, 1), 4)
