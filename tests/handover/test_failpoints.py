"""Failpoints are off by default, and a misspelt one is rejected. A failure at any place of a
hand-over ends only that transfer, with an error type and a fence on both sides."""

import asyncio
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tasuki.engine import messages as m
from tasuki.transfer import failpoints
from tasuki.transfer.failpoints import (
    CHUNK_PLACES,
    VARIABLE,
    Action,
    Failpoint,
    FailpointReached,
    FailpointSyntax,
    Place,
    parse,
    reach,
)
from tests.harness.handover_nodes import Inbound, Nodes, grant_of, nodes, wanted
from tests.harness.waiting import HANG_SECONDS

TRANSFER_ID, NEXT = 5, 6
NEVER_LOST = (Place.SENDER_AFTER_DONE, Place.RECEIVER_AFTER_COMMIT)
"""Places at which the receiver already has all it needs."""


def test_nothing_is_armed_unless_the_environment_says_so() -> None:
    assert not failpoints.ARMED
    for place in Place:
        reach(place, 0)


def test_what_is_armed_is_named_with_its_window() -> None:
    armed = parse("sender.after_post@3=kill, receiver.before_verify=delay:0.5")
    assert dict(armed) == {
        Place.SENDER_AFTER_POST: Failpoint(3, Action.KILL),
        Place.RECEIVER_BEFORE_VERIFY: Failpoint(None, Action.DELAY, 0.5),
    }


@pytest.mark.parametrize(
    "text",
    ["sender.nowhere=kill", "sender.on_grant", "sender.on_grant=explode", "sender.on_grant@1=kill"],
)
def test_a_misspelt_failpoint_is_refused_by_name(text: str) -> None:
    with pytest.raises(FailpointSyntax, match=text):
        parse(text)


def test_a_window_is_told_from_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failpoints, "ARMED", parse("sender.after_post@3=raise"))
    reach(Place.SENDER_AFTER_POST, 2)
    reach(Place.SENDER_AFTER_FLUSH, 3)
    with pytest.raises(FailpointReached, match="after_post"):
        reach(Place.SENDER_AFTER_POST, 3)


@pytest.mark.parametrize(("armed", "status"), [("", 0), ("sender.on_grant=kill", -9)])
def test_the_environment_is_what_arms_a_process(armed: str, status: int) -> None:
    code = "from tasuki.transfer.failpoints import *; reach(Place.SENDER_ON_GRANT)"
    environment = {**os.environ, VARIABLE: armed}
    run = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert run.returncode == status, run.stderr


def test_a_delay_passes_and_a_hang_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        failpoints, "ARMED", parse("sender.on_grant=delay:0.1,receiver.on_grant=hang")
    )
    begun = time.monotonic()
    reach(Place.SENDER_ON_GRANT)
    assert time.monotonic() - begun >= 0.1
    hanging = threading.Thread(target=reach, args=(Place.RECEIVER_ON_GRANT,), daemon=True)
    hanging.start()
    hanging.join(0.2)
    assert hanging.is_alive()


def test_every_place_is_in_the_code() -> None:
    root = Path(__file__).parents[2]
    sources = "".join(
        path.read_text()
        for part in ("transfer", "prefill_node", "decode_node")
        for path in (root / part).rglob("*.py")
    )
    for place in Place:
        assert sources.count(f"Place.{place.name}") > (place in CHUNK_PLACES), place


async def hand_over(both: Nodes, transfer_id: int) -> bool:
    """Play both engines, each part once, until the transfer ends in any way. Return whether it had
    a destination."""

    def compute() -> None:
        both.compute(transfer_id)
        both.say_token(transfer_id)

    grant = m.HandoverGranted(grant_of(transfer_id, both.pair.target.layout))
    parts: list[tuple[Inbound, type, Callable[[], None]]] = [
        (
            both.prefill,
            m.PrefillReserve,
            lambda: both.service.deliver(m.PrefillAccepted(transfer_id)),
        ),
        (both.decode, m.GrantWanted, lambda: both.client.deliver(grant)),
        (both.prefill, m.PrefillStart, compute),
    ]
    both.client.deliver(wanted(transfer_id))
    async with asyncio.timeout(HANG_SECONDS):
        while not (
            both.decode.of(m.RemoteDone, transfer_id)
            or both.decode.of(m.HandoverFailed, transfer_id)
        ):
            if parts and parts[0][0].of(parts[0][1], transfer_id):
                parts.pop(0)[2]()
            await asyncio.sleep(0.005)
    return len(parts) < 2


async def reconnected(both: Nodes) -> None:
    async with asyncio.timeout(HANG_SECONDS):
        while (link := both.client.links[0].connection) is None or not link.alive:
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("place", Place, ids=lambda place: place.value)
async def test_a_defect_at_any_place_ends_its_room_alone(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with nodes() as both:
        await both.connected()
        chunk = "@2" if place in CHUNK_PLACES else ""
        with monkeypatch.context() as patch:
            patch.setattr(failpoints, "ARMED", parse(f"{place.value}{chunk}=raise"))
            granted = await hand_over(both, TRANSFER_ID)
        lost, done = (
            both.decode.of(kind, TRANSFER_ID) for kind in (m.HandoverFailed, m.RemoteDone)
        )
        assert len(lost) + len(done) == 1
        assert done or place not in NEVER_LOST
        if lost and granted:
            await both.decode.wait(m.WriterFenced, TRANSFER_ID)
        await both.quiet()
        reserved, ended = (
            both.prefill.of(x, TRANSFER_ID) for x in (m.PrefillReserve, m.PrefillEnd)
        )
        assert len(reserved) == len(ended)
        await reconnected(both)
        await hand_over(both, NEXT)
        assert both.decode.of(m.RemoteDone, NEXT), both.decode.messages


@pytest.mark.parametrize("place", Place, ids=lambda place: place.value)
async def test_slow_is_not_dead_at_any_place(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    chunk = "@2" if place in CHUNK_PLACES else ""
    monkeypatch.setattr(failpoints, "ARMED", parse(f"{place.value}{chunk}=delay:0.2"))

    async with nodes() as both:
        await both.connected()
        await hand_over(both, TRANSFER_ID)
        assert both.decode.of(m.RemoteDone, TRANSFER_ID), both.decode.messages
        await both.quiet()
