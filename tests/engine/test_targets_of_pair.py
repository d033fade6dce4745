"""On a pair, a prompt is rejected at once if no prefill node can begin it in time. Its deadline is
sent with it to the prefill node."""

import math
from pathlib import Path

import numpy as np
import pytest

from tasuki.decode_node.prefill_connection import PrefillNodeLoad
from tasuki.engine import messages as m
from tasuki.engine.messages import transfer_proto as wire
from tasuki.engine.messages.proto import SAMPLING
from tasuki.engine.routing import PrefillLoad
from tasuki.engine.scheduling import admission
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.proto import handover_pb2 as pb
from tasuki.transfer.errors import PeerInvalid
from tests.engine.test_prefill_load import learnt, nothing_known
from tests.harness.decode_engine import DecodeNode
from tests.harness.engines import prompt, submit


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> DecodeNode:
    """Return a node with a known speed of thousands of tokens a second, on any machine."""
    monkeypatch.setattr(admission, "_WINDOW_SECONDS", 1e-9)
    node = DecodeNode(tmp_path, max_batch=4)
    node.post(submit("before", prompt(40), 2))
    node.run()
    return node


def test_what_others_have_sent_to_every_prefill_node_counts_as_another_callers(
    node: DecodeNode,
) -> None:
    outlook = node.engine._handover._outlook  # type: ignore[attr-defined]
    speed = max(outlook._speeds)
    node.post(m.PrefillBusy(1e6))
    turn = 2 * 200 / speed
    node.post(submit("late", prompt(200, seed=1), 4, targets=m.Targets(turn / 2)))
    assert node.rejected("late").kind is m.ErrorKind.OVERLOADED
    node.post(submit("taken", prompt(200, seed=2), 4, targets=m.Targets(turn * 1.01)))
    node.post(submit("here", prompt(40, seed=3), 4, targets=m.Targets(1e6)))
    node.post(submit("asks for nothing", prompt(200, seed=4), 4))
    node.step()
    assert {"taken", "asks for nothing"} <= {*node.asked}
    assert len(node.all_said(m.Rejected)) == 1


def test_without_others_or_without_a_prefill_node_nobody_is_refused_for_them(
    node: DecodeNode,
) -> None:
    for before in (m.PrefillBusy(0.0), m.PrefillBusy(1e6), m.PeersChanged(False)):
        node.post(before)
        if before != m.PrefillBusy(1e6):
            name = str(before)
            node.post(submit(name, prompt(200, seed=len(name)), 2, targets=m.Targets(1e-9)))
            node.leave(name)
    assert not node.all_said(m.Rejected)


def test_a_prefill_node_says_what_is_not_of_the_one_that_it_says_it_to() -> None:
    load = PrefillLoad(learnt())
    for transfer_id, (peer, tokens) in enumerate((("a", 1000), ("b", 2000), ("a", 500)), 1):
        load.enter(m.TransferId(transfer_id), 0, tokens, peer)
    report = load.report(0.0, nothing_known)
    assert report is not None

    def others(peer: str) -> float:
        return wire.load(report, peer).others_wait_seconds

    assert others("a") == pytest.approx(2.0, rel=1e-3)
    assert others("b") == pytest.approx(1.5, rel=1e-3)
    assert others("c") == pytest.approx(3.5, rel=1e-3)
    load.leave(m.TransferId(2))
    after = load.report(9.0, nothing_known)
    assert after is not None and wire.load(after, "a").others_wait_seconds == 0


def test_others_wait_falls_with_the_time_and_what_is_no_time_is_not_kept() -> None:
    known = PrefillNodeLoad()
    assert known.others_wait(5.0) == 0
    known.take(pb.Load(wait_seconds=9, others_wait_seconds=6), sent_by=10.0, now=10.1)
    assert known.others_wait(12.0) == pytest.approx(4.0)
    assert known.others_wait(99.0) == 0
    for bad in (math.nan, -1.0, math.inf, 1e9):
        with pytest.raises(PeerInvalid, match="others_wait_seconds"):
            known.take(pb.Load(others_wait_seconds=bad), sent_by=13.0, now=13.0)
    assert known.others_wait(12.0) == pytest.approx(4.0)


def sent(node: DecodeNode, name: str) -> pb.Reserve:
    """Return the prompt's message to the prefill node."""
    wanted = next(w for w in node.all_said(m.HandoverWanted) if w.request_id == name)
    return wire.reserve(wanted, "").reserve


@pytest.mark.parametrize("seconds", [30.0, 1e9, 1e300])
def test_the_time_of_a_first_token_goes_along(node: DecodeNode, seconds: float) -> None:
    node.post(submit("due", prompt(200, seed=1), 4, targets=m.Targets(seconds)))
    node.post(submit("whenever", prompt(200, seed=2), 4))
    node.step()
    due = wire.reserve_from_wire(sent(node, "due"), "a").transfer_request.due_seconds
    assert due is not None and 0 < due <= min(seconds, 86400)
    assert wire.reserve_from_wire(sent(node, "whenever"), "a").transfer_request.due_seconds is None


@pytest.mark.parametrize("due", [0.0, -1.0, math.nan, math.inf, 1e6])
def test_a_reserve_that_is_due_at_no_time_is_refused(due: float) -> None:
    sampling = SAMPLING.to_wire(SamplingParams(max_new_tokens=1))
    transfer_request = pb.Ticket(room=1, sampling=sampling, due_seconds=due)
    reserve = pb.Reserve(ticket=transfer_request, prompt=np.ones(3, dtype="<i4").tobytes())
    with pytest.raises(wire.InvalidReserve, match="due_seconds"):
        wire.reserve_from_wire(reserve, "a")
