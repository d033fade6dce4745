"""A room that stands still ends, in each state and on each side; beats and repetitions keep nothing
alive, and what moves is waited for."""

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tasuki.engine import messages as m
from tasuki.proto import handover_pb2_grpc
from tasuki.transfer.liveness.progress_watch import ProgressWatch
from tasuki.transfer.protocol.handover_states import RECEIVER, SENDER, Table
from tasuki.transfer.protocol.pull_states import PULL_RECEIVER, PULL_SENDER
from tasuki.transfer.rooms.room_deadlines import (
    PullReceiverDeadlines,
    PullSenderDeadlines,
    ReceiverDeadlines,
    SenderDeadlines,
)
from tasuki.transfer.transports.loopback import Fault
from tasuki.transfer.windows.send_report import Drain

from tests.handover.test_return_path import asked, goes_on, lost_and_fenced, source_of
from tests.handover.test_room_ends import quiet
from tests.harness.handover_nodes import LIMITS, SERVICE_LIMITS, Nodes, grant_of, nodes
from tests.harness.waiting import HANG_SECONDS

ROOM = 5
SOON = 0.3
LOOK = 0.05


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, HANG_SECONDS))


def receiving(**seconds: float) -> Any:
    return replace(LIMITS, deadlines=ReceiverDeadlines(**{"look": LOOK, **seconds}))


def sending(**seconds: float) -> Any:
    return replace(SERVICE_LIMITS, progress_seconds=LOOK, deadlines=SenderDeadlines(**seconds))


async def lost(both: Nodes, cause: m.LossCause) -> m.HandoverFailed:
    message = await both.decode.wait(m.HandoverFailed, ROOM)
    assert isinstance(message, m.HandoverFailed) and message.cause is cause, message
    return message


async def ended(both: Nodes, cause: m.LossCause | None) -> None:
    assert await both.prefill.wait(m.PrefillEnd, ROOM) == m.PrefillEnd(m.RoomId(ROOM), cause)


def test_a_place_in_a_queue_that_does_not_move_is_given_up_though_it_is_repeated() -> None:
    async def scenario() -> None:
        repeated = replace(SERVICE_LIMITS, progress_seconds=0.02)
        async with nodes(limits=receiving(reserved=SOON), service_limits=repeated) as both:
            await both.connected()
            await both.reserve(ROOM)
            both.service.deliver(m.PrefillQueued(m.RoomId(ROOM), 3))
            await lost(both, m.LossCause.STALLED)
            assert both.client.links[0].connection is not None, "the link is alive"
            await ended(both, None)
            await quiet(both)

    run(scenario())


def test_a_place_in_a_queue_that_moves_is_waited_for_until_the_queues_own_time() -> None:
    async def scenario() -> None:
        async with nodes(limits=receiving(reserved=4 * SOON, queue=8 * SOON)) as both:
            await both.connected()
            await both.reserve(ROOM)
            position = 0
            while not both.decode.of(m.HandoverFailed):
                # To and fro: what a peer tells must not keep a room for ever.
                position = 1 - position
                both.service.deliver(m.PrefillQueued(m.RoomId(ROOM), position))
                await asyncio.sleep(SOON / 3)
            await lost(both, m.LossCause.QUEUE_TIMEOUT)
            await ended(both, None)
            await quiet(both)

    run(scenario())


def test_an_engine_that_refuses_for_its_queue_is_counted_as_that() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            error = m.RequestError(m.ErrorKind.QUEUE_TIMEOUT, "not begun in time")
            both.service.deliver(m.PrefillRefused(m.RoomId(ROOM), error))
            await lost(both, m.LossCause.QUEUE_TIMEOUT)
            await ended(both, m.LossCause.QUEUE_TIMEOUT)

    run(scenario())


def test_an_own_engine_that_grants_nothing_frees_the_senders_lease() -> None:
    async def scenario() -> None:
        async with nodes(limits=receiving(accepted=SOON)) as both:
            await both.connected()
            await both.accept(ROOM)
            message = await lost(both, m.LossCause.NO_ROOM)
            assert not message.elsewhere, "no other sender makes room here"
            await ended(both, None)
            await quiet(both)
            # A grant that comes too late has no writer.
            both.client.deliver(m.HandoverGranted(grant_of(ROOM, both.pair.target.layout)))
            await both.decode.wait(m.WriterFenced, ROOM)

    run(scenario())


def test_a_receiver_that_beats_and_never_grants_does_not_keep_the_lease() -> None:
    async def scenario() -> None:
        async with nodes(service_limits=sending(accepted=SOON)) as both:
            await both.connected()
            await both.accept(ROOM)
            await ended(both, m.LossCause.STALLED)
            assert both.service.receivers == ["decode-0"], "its beats are answered all the while"
            message = await both.decode.wait(m.HandoverFailed, ROOM)
            assert isinstance(message, m.HandoverFailed) and "grant is awaited" in message.reason
            await quiet(both)

    run(scenario())


@pytest.mark.parametrize("moves", [False, True], ids=["alone", "behind one that moves"])
def test_a_granted_room_waits_for_those_before_it_as_long_as_they_move(moves: bool) -> None:
    async def scenario() -> None:
        limits = receiving(granted=4 * SOON, queue=12 * SOON)
        async with nodes(limits=limits) as both:
            await both.connected()
            await both.grant(ROOM)
            connection = both.client.links[0].connection
            assert connection is not None
            while not both.decode.of(m.HandoverFailed):
                connection.landed += moves
                await asyncio.sleep(SOON / 3)
            await lost(both, m.LossCause.QUEUE_TIMEOUT if moves else m.LossCause.STALLED)
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)

    run(scenario())


def test_what_lands_of_one_room_is_seen_by_its_neighbours() -> None:
    async def scenario() -> None:
        async with nodes(limits=receiving()) as both:
            await both.connected()
            connection = both.client.links[0].connection
            assert connection is not None
            await both.grant(ROOM)
            await both.grant(ROOM + 1)
            both.compute(ROOM + 1)
            async with asyncio.timeout(HANG_SECONDS):
                while not connection.landed:
                    await asyncio.sleep(LOOK)

    run(scenario())


@pytest.mark.parametrize("state", ["granted", "ready"])
def test_a_room_on_which_nothing_lands_is_lost_and_fenced(state: str) -> None:
    async def scenario() -> None:
        limits = receiving(**{state: SOON})
        async with nodes(limits=limits) as both:
            await both.connected()
            await both.grant(ROOM)
            if state == "ready":
                both.say_token(ROOM)
                await both.decode.wait(m.RemoteReady, ROOM)
            await lost(both, m.LossCause.STALLED)
            await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)

    run(scenario())


def test_windows_that_land_one_after_the_other_are_waited_for() -> None:
    """Each within its time, all together far beyond it."""

    async def scenario() -> None:
        held = {2, 4, 6}
        limits = receiving(granted=6 * SOON, ready=6 * SOON)
        faults = lambda i: Fault.HOLD if i in held else Fault.NONE  # noqa: E731
        async with nodes(faults=faults, limits=limits) as both:
            await both.connected()
            await both.grant(ROOM)
            both.say_token(ROOM)
            await asyncio.sleep(3 * SOON)
            both.compute(ROOM)
            for _ in range(3):
                await asyncio.sleep(3 * SOON)
                both.pair.fabric.let_go()
            await both.decode.wait(m.RemoteDone, ROOM)
            assert not both.decode.of(m.HandoverFailed)

    run(scenario())


def test_a_verification_that_never_ends_is_lost_and_fenced() -> None:
    async def scenario() -> None:
        go = threading.Event()
        async with nodes(limits=receiving(verifying=SOON)) as both:
            await both.connected()
            both.pair.receiver.verify = lambda *_: go.wait(30)  # type: ignore[method-assign]
            await both.grant(ROOM)
            both.compute(ROOM)
            both.say_token(ROOM)
            try:
                await lost(both, m.LossCause.STALLED)
                await both.decode.wait(m.WriterFenced, ROOM)
                await quiet(both)
            finally:
                go.set()

    run(scenario())


@pytest.mark.parametrize(
    ("state", "cause"),
    [
        ("queued", m.LossCause.QUEUE_TIMEOUT),
        ("streaming", m.LossCause.STALLED),
        ("ready", m.LossCause.STALLED),
        ("holding", m.LossCause.STALLED),
    ],
)
def test_a_sender_that_stands_still_gives_its_room_up_and_says_so(
    state: str, cause: m.LossCause
) -> None:
    async def scenario() -> None:
        async with nodes(service_limits=sending(**{state: SOON})) as both:
            await both.connected()
            await (both.reserve if state == "queued" else both.grant)(ROOM)
            if state == "ready":
                both.say_token(ROOM)
            if state == "holding":
                both.compute(ROOM)
            await ended(both, cause)
            message = await both.decode.wait(m.HandoverFailed, ROOM)
            assert isinstance(message, m.HandoverFailed) and "gives up" in message.reason
            if state != "queued":
                await both.decode.wait(m.WriterFenced, ROOM)
            await quiet(both)

    run(scenario())


def test_a_drain_that_never_ends_is_told_as_forced() -> None:
    """Then only the lease frees what was granted, and the engine lets go all the same."""

    async def scenario() -> None:
        async with nodes(service_limits=sending(draining=SOON)) as both:
            await both.connected()
            await both.grant(ROOM)
            never: Future[Drain] = Future()
            both.pair.sender.abort = lambda _: never  # type: ignore[method-assign]
            connection = both.client.links[0].connection
            assert connection is not None
            both.client.deliver(m.HandoverCancelled(m.RoomId(ROOM)))
            await both.prefill.wait(m.PrefillEnd, ROOM)
            assert both.service._ended.drain(connection.id, ROOM, 11) is Drain.FORCED
            await both.decode.wait(m.WriterFenced, ROOM)
            del both.pair.sender.abort

    run(scenario())


def test_a_node_stops_though_a_room_never_drains() -> None:
    async def scenario() -> None:
        limits = replace(SERVICE_LIMITS, stop_seconds=SOON)
        async with nodes(service_limits=limits) as both:
            await both.connected()
            await both.grant(ROOM)
            never: Future[Drain] = Future()
            both.pair.sender.abort = lambda _: never  # type: ignore[method-assign]
            await asyncio.wait_for(both.service.stop(), HANG_SECONDS)
            del both.pair.sender.abort

    run(scenario())


def test_a_stream_on_which_nothing_is_said_is_closed() -> None:
    async def scenario() -> None:
        limits = replace(SERVICE_LIMITS, write_seconds=SOON)
        async with (
            nodes(service_limits=limits) as both,
            grpc.aio.insecure_channel(f"127.0.0.1:{both.port}") as channel,
        ):
            call = handover_pb2_grpc.HandoverStub(channel).Transfer()
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await asyncio.wait_for(call.read(), HANG_SECONDS)
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT

    run(scenario())


def test_a_pull_that_our_engine_neither_pins_nor_refuses_is_over() -> None:
    async def scenario() -> None:
        limits = replace(LIMITS, pull=PullSenderDeadlines(pinning=SOON, look=LOOK))
        async with nodes(limits=limits) as both:
            await asked(both)
            await lost_and_fenced(both)
            await goes_on(both)

    run(scenario())


def test_a_pull_that_is_granted_what_cannot_be_written_is_lost_and_fenced_at_once() -> None:
    async def scenario() -> None:
        async with nodes() as both:
            await both.connected()
            await both.reserve(ROOM)
            layout = both.pair.source.layout
            grant = grant_of(ROOM + 1, layout)
            beside = m.PullGrant(m.RoomId(ROOM), 70, 250, 0, (10**6,), grant.slot)
            both.service.deliver(m.PullWanted(beside))
            await both.prefill.wait(m.PullLost, ROOM)
            await both.prefill.wait(m.PullFenced, ROOM)

    run(scenario())


def test_a_pulls_verification_that_never_ends_costs_the_pull_only() -> None:
    async def scenario() -> None:
        go = threading.Event()
        limits = replace(SERVICE_LIMITS, pull=PullReceiverDeadlines(verifying=SOON, look=LOOK))
        async with nodes(service_limits=limits) as both:
            await asked(both)
            both.pair.back_receiver.verify = lambda *_: go.wait(30)  # type: ignore[method-assign]
            both.client.deliver(m.PullPinned(source_of(both)))
            try:
                await both.prefill.wait(m.PullLost, ROOM)
                await both.prefill.wait(m.PullFenced, ROOM)
                await both.decode.wait(m.PullEnd, ROOM)
            finally:
                go.set()

    run(scenario())


def test_a_pulls_drain_that_never_ends_lets_the_engine_go() -> None:
    async def scenario() -> None:
        limits = replace(LIMITS, pull=PullSenderDeadlines(pinning=SOON, draining=SOON, look=LOOK))
        async with nodes(limits=limits) as both:
            await asked(both)
            never: Future[Drain] = Future()
            both.pair.back_sender.abort = lambda _: never  # type: ignore[method-assign]
            await both.decode.wait(m.PullEnd, ROOM)
            await both.prefill.wait(m.PullLost, ROOM)
            await both.prefill.wait(m.PullFenced, ROOM)
            del both.pair.back_sender.abort

    run(scenario())


def states(table: Table[Any, Any]) -> list[Any]:
    found = {state for state, _ in table} | set(table.values())
    return sorted(found, key=lambda state: state.name)


AWAITING = [
    *((ReceiverDeadlines(), s) for s in states(RECEIVER)),
    *((SenderDeadlines(), s) for s in states(SENDER)),
    *((PullReceiverDeadlines(), s) for s in states(PULL_RECEIVER)),
    *((PullSenderDeadlines(), s) for s in states(PULL_SENDER)),
]
AWAIT_NOBODY = {"NEW", "IDLE", "DONE", "REFUSED", "ENDED", "COMMITTED"}
FENCED_BY_EVIDENCE = {"QUARANTINED"}


@pytest.mark.parametrize(
    ("deadlines", "state"), AWAITING, ids=lambda v: v.name if hasattr(v, "name") else ""
)
def test_every_state_in_which_somebody_is_awaited_has_a_deadline(
    deadlines: Any, state: Any
) -> None:
    bounded = 0 < deadlines.of(state) < 3600
    assert bounded == (state.name not in AWAIT_NOBODY | FENCED_BY_EVIDENCE)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_watch_counts_from_the_last_move() -> None:
    clock = Clock()
    watch = ProgressWatch(1.0, clock)
    assert watch.still("a") == 0.0
    for second in range(1, 6):
        clock.now += 1.0
        assert watch.still("a") == second
    clock.now += 1.0
    assert watch.still("b") == 0.0


def test_a_watch_that_was_frozen_blames_nobody_for_its_own_gap() -> None:
    clock = Clock()
    watch = ProgressWatch(1.0, clock)
    watch.still("a")
    clock.now += 1000.0
    assert watch.still("a") <= 2.0
