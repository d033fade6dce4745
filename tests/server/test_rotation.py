"""A node leaves the rotation, takes requests for a grace, and refuses them afterwards."""

import asyncio
import time

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.engine import messages as m
from tasuki.proto import inference_pb2 as pb
from tasuki.server.config import ServerConfig
from tasuki.server.drain import Rotation
from tasuki.server.text.text_codec import TextCodec
from tests.harness.grpc_fixtures import running_front
from tests.harness.http_fixtures import running_http
from tests.harness.refusals import refusal
from tests.harness.waiting import HANG_SECONDS, until

GRACE = 0.5
LONG = 600.0


def seconds_of_grace(rotation: Rotation, *, after: object = None) -> float:
    """Return the time a leaving node still takes requests, in seconds. after: called once the node
    has left."""

    async def measured() -> float:
        began = time.monotonic()
        rotation.leave()
        waiting = asyncio.create_task(rotation.grace())
        await asyncio.sleep(0.01)
        if callable(after):
            after()
        await asyncio.wait_for(waiting, HANG_SECONDS)
        return time.monotonic() - began

    return asyncio.run(measured())


def test_a_node_without_a_grace_may_refuse_at_once() -> None:
    assert seconds_of_grace(Rotation()) < GRACE


def test_the_grace_counts_from_when_the_node_left() -> None:
    assert GRACE <= seconds_of_grace(Rotation(GRACE)) < GRACE + HANG_SECONDS


def test_a_grace_is_skipped_once() -> None:
    rotation = Rotation(LONG)
    skipped: list[bool] = []

    def hurry() -> None:
        skipped.extend((rotation.hurry(), rotation.hurry()))

    assert seconds_of_grace(rotation, after=hurry) < HANG_SECONDS
    assert skipped == [True, False]


def test_a_grace_is_skipped_before_it_begins() -> None:
    async def skipped(rotation: Rotation) -> bool:
        return rotation.hurry()

    rotation = Rotation(LONG)
    assert asyncio.run(skipped(rotation))
    assert seconds_of_grace(rotation) < HANG_SECONDS
    assert not asyncio.run(skipped(Rotation())), "there was none to skip"


async def test_a_node_that_comes_back_owes_a_whole_grace() -> None:
    rotation = Rotation(GRACE)
    rotation.leave()
    await asyncio.sleep(GRACE / 2)
    rotation.come_back()
    await rotation.grace()
    was_left = rotation.left
    began = time.monotonic()
    rotation.leave()
    await rotation.grace()
    again = time.monotonic() - began
    assert not was_left and again >= GRACE


def test_watchers_see_each_change_once() -> None:
    async def seen() -> list[bool]:
        rotation, changes = Rotation(), []
        rotation.watch(lambda: changes.append(rotation.left))
        for change in (rotation.leave, rotation.leave, rotation.come_back, rotation.come_back):
            change()
        return changes

    assert asyncio.run(seen()) == [True, False]


def test_a_drain_call_fails_health_at_once_and_refuses_after_the_grace() -> None:
    with running_front(config=ServerConfig(drain_grace=LONG)) as front:
        calls, health = front.calls, health_pb2_grpc.HealthStub(front.channel)
        watch = health.Watch(health_pb2.HealthCheckRequest())
        status = health_pb2.HealthCheckResponse
        assert next(watch).status == status.SERVING
        draining = calls.admin.Drain.future(pb.DrainRequest())
        assert next(watch).status == status.NOT_SERVING
        load = calls.sessions.Load(pb.SessionLoadRequest(), timeout=HANG_SECONDS)
        assert load.draining, "clients that choose between nodes take another"
        assert not front.engine.of(m.Drain), "requests are taken still"
        calls.admin.Undrain(pb.UndrainRequest(), timeout=HANG_SECONDS)
        assert next(watch).status == status.SERVING
        refused = refusal(draining.result, timeout=HANG_SECONDS)
        assert refused.status is grpc.StatusCode.ABORTED
        assert not front.engine.of(m.Drain)
        watch.cancel()


def test_a_drain_call_reaches_the_engine_when_the_grace_is_over() -> None:
    with running_front(config=ServerConfig(drain_grace=GRACE)) as front:
        began = time.monotonic()
        front.calls.admin.Drain(pb.DrainRequest(), timeout=HANG_SECONDS)
        assert time.monotonic() - began >= GRACE and len(front.engine.of(m.Drain)) == 1


def test_an_engine_that_dies_ends_the_grace() -> None:
    with running_front(config=ServerConfig(drain_grace=LONG)) as front:
        draining = front.calls.admin.Drain.future(pb.DrainRequest())
        until(lambda: front.client.rotation.left, "the call has not come")
        front.loop.call_soon_threadsafe(front.client.engine_lost, "out of luck")
        assert "out of luck" in refusal(draining.result, timeout=HANG_SECONDS).message


def test_a_node_that_ends_is_not_drained_back() -> None:
    with running_front(config=ServerConfig(drain_grace=LONG)) as front:
        leaving = asyncio.run_coroutine_threadsafe(front.client.leave(), front.loop)
        until(lambda: front.client.rotation.left, "it does not leave")
        refused = refusal(front.calls.admin.Undrain, pb.UndrainRequest(), timeout=HANG_SECONDS)
        assert refused.status is grpc.StatusCode.UNAVAILABLE and front.client.rotation.left
        front.loop.call_soon_threadsafe(front.client.rotation.hurry)
        leaving.result(HANG_SECONDS)


@pytest.mark.parametrize("path", ["/ready", "/v1/completions"])
def test_in_the_grace_readiness_alone_is_gone(codec: TextCodec, path: str) -> None:
    with running_http(codec, ServerConfig(drain_grace=LONG)) as http:
        http.front.loop.call_soon_threadsafe(http.front.client.rotation.leave)
        until(lambda: http.ask("GET", "/ready").status == 503, "it stays ready")
        if path == "/ready":
            assert http.ask("GET", path).refusal == (503, "draining")
        else:
            assert http.complete().status == 200
