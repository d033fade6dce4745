"""Transfers of a decode engine: one object each, legal moves only, and two requests never share
one."""

from pathlib import Path

import numpy as np
import pytest

from tasuki.engine import messages as m
from tasuki.engine.config import Role
from tasuki.engine.handover.decode_side import DecodeHandover
from tasuki.engine.handover.decode_transfers import (
    MOVES,
    DecodeTransfer,
    DecodeTransferState,
)
from tasuki.engine.request import IllegalMove, Request
from tasuki.engine.runner.cpu_runner import CpuRunner
from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import Lone, engine_config, submit, tiny_parts

TRANSFER_ID = m.TransferId(7)
HERE = m.GatewayTransfer(TRANSFER_ID, "127.0.0.1:1")


def prompt(seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, 128, 150).tolist()


@pytest.fixture
def decode(tmp_path: Path) -> Lone:
    node = Lone(engine_config(tmp_path, local_prefill_tokens=0), Role.DECODE, tiny_parts())
    node.post(m.PeersChanged(True))
    return node


def transfers_of(node: Lone) -> dict[m.TransferId, DecodeTransfer]:
    handover = node.engine._handover
    assert isinstance(handover, DecodeHandover)
    return handover._transfers._transfers


def test_every_state_ends_and_an_illegal_move_names_both_ends() -> None:
    assert {kind for kind, ends in MOVES.items() if not ends} == {DecodeTransferState.OVER}
    request = Request(m.RequestId("r"), np.zeros(1, np.int32), SamplingParams(max_new_tokens=1))
    transfer = DecodeTransfer(TRANSFER_ID, request, m.HitBreakdown(1, 0, 0, {"new": 1}, None))
    with pytest.raises(IllegalMove, match="transfer 7: ASKED -> READY"):
        transfer.move(DecodeTransferState.READY)
    for state in (
        DecodeTransferState.WANTED,
        DecodeTransferState.GRANTED,
        DecodeTransferState.READY,
        DecodeTransferState.OVER,
    ):
        transfer.move(state)
    assert not transfer.live


@pytest.mark.parametrize("granted", [False, True])
def test_a_room_is_kept_until_its_writer_is_fenced(decode: Lone, granted: bool) -> None:
    decode.post(submit("r", prompt(1), 2, gateway_transfer=HERE))
    decode.step()
    if granted:
        decode.post(m.GrantWanted(TRANSFER_ID))
        decode.step()
    decode.post(m.Abort(m.RequestId("r")))
    assert (TRANSFER_ID in transfers_of(decode)) is granted
    decode.post(m.WriterFenced(TRANSFER_ID))
    assert not transfers_of(decode)
    decode.assert_at_rest()


def test_two_requests_of_one_told_room_do_not_share_it(decode: Lone) -> None:
    """Both are queued before the transfer is requested; the second gets its own number."""
    decode.post(submit("one", prompt(1), 2, gateway_transfer=HERE))
    decode.post(submit("two", prompt(2), 2, gateway_transfer=HERE))
    decode.step()
    wanted = [said for said in decode.said if isinstance(said, m.HandoverWanted)]
    assert [said.request_id for said in wanted] == ["one", "two"]
    assert (
        wanted[0].transfer_request.transfer_id
        == TRANSFER_ID
        != wanted[1].transfer_request.transfer_id
    )
    assert (wanted[0].sender, wanted[1].sender) == (HERE.sender, None)
    for said in wanted:
        decode.post(m.HandoverFailed(said.transfer_request.transfer_id, "cut"))
    decode.run()
    assert {said.request_id for said in decode.said if isinstance(said, m.Finished)} == {
        "one",
        "two",
    }
    decode.assert_at_rest()


@pytest.mark.parametrize("role", [Role.FUSED, Role.DECODE])
def test_a_message_of_another_role_is_an_error(tmp_path: Path, role: Role) -> None:
    node = Lone(engine_config(tmp_path), role, tiny_parts())
    with pytest.raises(ValueError, match="PrefillEnd reached an engine whose role"):
        node.post(m.PrefillEnd(TRANSFER_ID))
    node.assert_at_rest()


@pytest.mark.parametrize("lost", [m.Abort(m.RequestId("r")), m.HandoverFailed(TRANSFER_ID, "cut")])
def test_ids_that_are_lost_before_they_were_at_rest_are_free_once_they_are(
    decode: Lone, lost: m.Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No prefill node was given them, so none is ever fenced."""
    rests: list[bool] = []
    monkeypatch.setattr(CpuRunner, "record_event", lambda self: lambda: bool(rests))
    decode.post(submit("r", prompt(1), 2, gateway_transfer=HERE))
    decode.step()
    decode.post(m.GrantWanted(TRANSFER_ID))
    decode.step()
    decode.post(lost)
    assert decode.stats().pages["quarantined"] > 0, "something may still use them"
    rests.append(True)
    decode.step()
    assert not decode.all_said(m.HandoverGranted)
    assert decode.stats().pages["quarantined"] == 0
    decode.post(m.Abort(m.RequestId("r")))
    decode.assert_at_rest()
