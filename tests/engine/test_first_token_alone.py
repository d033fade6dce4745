"""An answer of one token moves no bytes. The transfer of an answer that ends with its first token
is cut short. The next turn is exact in both cases."""

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.transfer.chunks.chunk import ChunkHeader, Destination
from tasuki.transfer.errors import OutOfBounds
from tasuki.transfer.receiving.incoming_transfer import IncomingTransfer
from tasuki.transfer.reports import Drain
from tasuki.transfer.transports.loopback import Fault, no_faults
from tests.harness.decode_engine import DecodeNode
from tests.harness.engine_pair import LONG, PEER, EnginePair, OneTransfer
from tests.harness.engines import alone, prompt, submit
from tests.harness.handover_nodes import GENERATION, PAGES, nodes
from tests.harness.loopback_pair import small_layout
from tests.harness.waiting import until

NAME = "first"


def next_turn_is_exact(pair: EnginePair, first: list[int], usable: int) -> None:
    """Hand over another prompt after the answer, and assert its tokens."""
    turn = first + pair.decode.tokens(NAME) + prompt(40, seed=9)
    transfer = pair.hand_over(submit("next", turn, 6))
    pair.ready(transfer, None)
    assert isinstance(pair.done(transfer), m.RemoteDone)
    pair.decode.run()
    assert pair.decode.tokens("next") == alone(turn, 6)
    assert pair.decode.hit("next").usable_tokens >= usable


@pytest.mark.parametrize("length", [1, 64, 100, 150])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_answer_of_one_token_moves_nothing(
    pair: EnginePair, length: int, temperature: float
) -> None:
    first = prompt(length)
    sampling = SamplingParams(max_new_tokens=1, temperature=temperature, seed=3)
    transfer = pair.hand_over(submit(NAME, first, 1, sampling=sampling))
    stats = pair.decode.stats()
    held = [stats.pages[owner] + stats.slots[owner] for owner in ("working", "granted")]
    assert held == [0, 0], "granted what nobody will read"
    pair.ready(transfer, LONG)
    # Nothing more is waited for.
    usage = pair.decode.finished(NAME).usage
    assert pair.decode.tokens(NAME) == alone(first, 1, sampling=sampling)
    assert usage.prefilled_on == "prefill" and not usage.local_fallback
    assert usage.transfer is not None and usage.transfer.bytes == 0
    report = pair.flushed(transfer).report
    assert report.bytes == 0 == report.pages
    pair.done(transfer)
    assert not pair.decode.all_said(m.HandoverCancelled)
    assert pair.early.counters["begun"] == 0
    next_turn_is_exact(pair, first, (length - 1) // 64 * 64)


def cut_short(pair: EnginePair, first: list[int]) -> OneTransfer:
    """Run a transfer up to the first token, also the end of the answer, with layer chunks in
    flight. The fabric holds each on the wire."""
    (token,) = alone(first, 1)
    pair.link._faults = lambda index: Fault.HOLD
    sampling = SamplingParams(max_new_tokens=6, stop_token_ids=(token,))
    transfer = pair.hand_over(submit(NAME, first, 6, sampling=sampling))
    until(lambda: bool(pair.fabric.held), "no window is on its way")
    pair.ready(transfer, LONG)
    return transfer


def let_arrive(pair: EnginePair, completed: Callable[[], bool]) -> None:
    """Let the layer chunks in flight arrive, until `landed` holds."""
    pair.link._faults = no_faults

    def have_arrived() -> bool:
        pair.fabric.let_go()
        return completed()

    until(have_arrived, "what is on its way does not land")


def test_what_moves_of_an_answer_that_has_ended_is_cut_short(pair: EnginePair) -> None:
    first = prompt(150)
    transfer = cut_short(pair, first)
    ended = pair.decode.finished(NAME)
    assert ended.reason is m.FinishReason.STOP and ended.usage.completion_tokens == 1
    assert ended.usage.prefilled_on == "prefill" and ended.usage.transfer is None
    number = transfer.transfer_request.transfer_id
    assert [said.transfer_id for said in pair.decode.all_said(m.HandoverCancelled)] == [number]
    assert pair.decode.stats().pages["quarantined"] > 0, "the writer is not fenced yet"
    drained = pair.sender.abort(number, PEER)
    let_arrive(pair, drained.done)
    assert drained.result() is Drain.DRAINED
    assert not pair.ends.over(number), "all of it was sent"
    pair.receiver.forget(number)
    pair.prefill.post(m.PrefillEnd(number))
    pair.decode.post(m.WriterFenced(number))
    assert pair.decode.stats().pages["quarantined"] == 0
    next_turn_is_exact(pair, first, 128)


def test_a_done_that_crosses_the_cut_changes_nothing(pair: EnginePair) -> None:
    transfer = cut_short(pair, prompt(100))
    let_arrive(pair, lambda: pair.ends.over(transfer.transfer_request.transfer_id))
    assert isinstance(pair.done(transfer), m.RemoteDone)
    pair.decode.run()
    # The client of an ended transfer fences it at once.
    pair.decode.post(m.WriterFenced(transfer.transfer_request.transfer_id))
    assert len(pair.decode.all_said(m.Finished)) == 1


@pytest.mark.parametrize("end", ["leaves", "lost", "elsewhere"])
def test_a_room_that_was_granted_nothing_ends_without_a_fence(pair: EnginePair, end: str) -> None:
    first = prompt(100)
    transfer = pair.hand_over(submit(NAME, first, 1))
    number = transfer.transfer_request.transfer_id
    if end == "leaves":
        pair.decode.post(m.Abort(m.RequestId(NAME)))
        assert pair.decode.finished(NAME).reason is m.FinishReason.ABORT
        assert [said.transfer_id for said in pair.decode.all_said(m.HandoverCancelled)] == [number]
    else:
        pair.decode.post(m.HandoverFailed(number, "cut", elsewhere=end == "elsewhere"))
        if end == "elsewhere":
            pair.decode.step()
            again = pair.decode.all_said(m.HandoverWanted)[-1]
            assert again.transfer_request.transfer_id != number
            pair.decode.post(m.HandoverFailed(again.transfer_request.transfer_id, "cut"))
        pair.decode.run()
        assert pair.decode.tokens(NAME) == alone(first, 1)
    pair.decode.post(m.WriterFenced(number))
    pair.flushed(transfer)
    pair.receiver.forget(number)
    pair.prefill.post(m.PrefillEnd(number))


async def test_a_grant_of_nothing_goes_the_whole_way_and_writes_nothing() -> None:
    async with nodes() as both:
        await both.connected()
        await both.accept(5)
        before = both.pair.target.memory.copy()
        nothing = m.Grant(m.TransferId(5), GENERATION, PAGES, (), None)
        both.client.deliver(m.HandoverGranted(nothing))
        start = await both.prefill.wait(m.PrefillStart, 5)
        assert isinstance(start, m.PrefillStart) and start.grant == nothing
        both.compute(5)
        both.say_token(5)
        done = await both.decode.wait(m.RemoteDone, 5)
        assert isinstance(done, m.RemoteDone) and done.transfer.bytes == 0
        assert np.array_equal(before, both.pair.target.memory)
        await both.prefill.wait(m.PrefillEnd, 5)
        await both.quiet()


def test_a_state_for_which_no_slot_was_granted_is_no_part_of_the_room() -> None:
    layout = small_layout()
    transfer = IncomingTransfer(1, 1, Destination(2, (), None), layout, threading.Condition())
    layers = len(layout.layers)
    with pytest.raises(OutOfBounds, match="carries a state"):
        transfer.pages_of(ChunkHeader(0, 0, layers, 2, 0, True))
    empty = ChunkHeader(0, 0, layers, 2, 0, False)
    assert transfer.pages_of(empty) == ()
    assert all(transfer.layer_arrived(layer) for layer in range(layers))


def test_answers_of_one_token_need_no_place_here(tmp_path: Path) -> None:
    node = DecodeNode(tmp_path, max_batch=1)
    for name in ("a", "b"):
        node.want(name, 100, 8)
    for number in range(4):
        node.want(f"one {number}", 100, 1)
    node.want("c", 100, 8)
    node.step()
    assert node.asked == ["a", "b", "one 0", "one 1", "one 2", "one 3"]
    for name in node.asked[2:]:
        node.post(m.GrantWanted(node.transfer_id(name)))
    assert node.granted == node.asked[2:], "without a step"
    assert all(grant.grant.slot is None for grant in node.all_said(m.HandoverGranted))
