"""A request not begun in time ends with a typed error in every queue. One already begun never
does."""

import math
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue

import numpy as np

from tasuki.engine import messages as m
from tasuki.engine.assembly.engines import build_cache, build_prefill_engine
from tasuki.engine.assembly.parts import EngineParts
from tasuki.engine.config import Role
from tasuki.engine.request import Request
from tasuki.engine.scheduling.admission import QueueLimit
from tasuki.engine.thread import EngineThread
from tasuki.model.ops.sampling.params import SamplingParams
from tests.handover.test_pulls import prompt_of, reserve, sender_over
from tests.harness.engines import Lone, engine_config, submit, tiny_parts
from tests.harness.waiting import HANG_SECONDS, ManualClock

SOON = 0.05


def request(name: str) -> Request:
    return Request(m.RequestId(name), np.ones(3, dtype=np.int32), SamplingParams())


def test_who_waits_too_long_is_due_once_and_in_order() -> None:
    clock = ManualClock()
    limit = QueueLimit(60.0, clock)
    assert limit.idle_seconds is None
    first, second = request("first"), request("second")
    limit.entered(first)
    clock.now += 30
    limit.entered(second)
    assert limit.idle_seconds == 30.0
    assert limit.passed([first, second]) == []
    clock.now += 30
    assert limit.idle_seconds == 0.0
    assert limit.passed([first, second]) == [first]
    assert limit.idle_seconds == 30.0
    clock.now += 30
    assert limit.passed([second]) == [second]
    assert limit.idle_seconds is None


def test_who_may_wait_for_ever_is_never_looked_at() -> None:
    limit = QueueLimit(math.inf, ManualClock())
    limit.entered(request("patient"))
    assert limit.idle_seconds is None


def test_a_first_token_due_behind_the_wait_is_not_waited_for() -> None:
    """A client may name any time, as often as it likes: nothing may be kept until then."""
    clock = ManualClock()
    limit = QueueLimit(60.0, clock)
    patient = [request(str(number)) for number in range(3)]
    for waiting, seconds in zip(patient, (61.0, 1e9, 1e297), strict=True):
        waiting.targets = m.Targets(first_token=seconds)
        limit.entered(waiting)
    assert limit.idle_seconds == 60.0
    clock.now += 60
    assert limit.passed(patient) == patient
    assert limit.idle_seconds is None


def test_who_was_begun_once_waits_as_long_as_it_takes() -> None:
    clock = ManualClock()
    limit = QueueLimit(60.0, clock)
    begun, answered = request("begun"), request("answered")
    begun.started = (clock.now, 0)
    answered.output.append(7)
    for waiting in (begun, answered):
        limit.entered(waiting)
    clock.now += 1000
    assert limit.passed([begun, answered]) == []


def test_who_comes_back_from_another_nodes_queue_waits_anew() -> None:
    clock = ManualClock()
    limit = QueueLimit(60.0, clock)
    waiting = request("back")
    limit.entered(waiting)
    clock.now += 59
    limit.entered(waiting)
    clock.now += 59
    assert limit.passed([waiting]) == []
    clock.now += 1
    assert limit.passed([waiting]) == [waiting]


def test_a_request_that_is_never_begun_ends_and_the_running_one_goes_on(tmp_path: Path) -> None:
    config = engine_config(tmp_path, max_batch=1, queue_timeout=SOON)
    engine, clock = Lone(config, Role.FUSED, tiny_parts()), ManualClock()
    engine.engine._queue._clock = clock
    prompt = prompt_of(40)
    alone = Lone(engine_config(tmp_path, max_batch=1), Role.FUSED, tiny_parts())
    expected = alone.ask("runs", prompt, 12)
    engine.post(submit("runs", prompt, 12))
    engine.step()
    engine.post(submit("waits", prompt_of(40, seed=2), 4))
    clock.now += 2 * SOON
    engine.run()
    assert engine.tokens("runs") == expected and len(expected) == 12
    error = engine.rejected("waits")
    assert error.kind is m.ErrorKind.QUEUE_TIMEOUT and "--queue-timeout" in error.message
    assert not engine.tokens("waits")


TRANSFER_IDS = 40
"""More than the arena has slots for: the last ones wait, and nothing runs until one is granted."""


def transfers() -> list[m.PrefillReserve]:
    return [
        reserve(prompt_of(100, seed=transfer_id), 0, m.TransferId(transfer_id))
        for transfer_id in range(1, TRANSFER_IDS + 1)
    ]


def few_slots() -> EngineParts:
    return tiny_parts(arena_mib=0.5)


def test_a_room_behind_those_that_hold_all_is_refused_for_its_queue(tmp_path: Path) -> None:
    parts = few_slots()
    config = engine_config(tmp_path, queue_timeout=SOON, max_batch=2 * TRANSFER_IDS)
    node, clock = Lone(config, Role.PREFILL, parts, sender_over(parts)), ManualClock()
    node.engine._queue._clock = clock
    for asked in transfers():
        node.post(asked)
    node.run()
    held = [accepted.transfer_id for accepted in node.all_said(m.PrefillAccepted)]
    assert 0 < len(held) < TRANSFER_IDS
    clock.now += 2 * SOON
    node.run()
    refused = node.all_said(m.PrefillRefused)
    assert {r.error.kind for r in refused} == {m.ErrorKind.QUEUE_TIMEOUT}
    assert [r.transfer_id for r in refused] == [
        transfer_id for transfer_id in range(1, TRANSFER_IDS + 1) if transfer_id not in held
    ]
    for transfer_id in range(1, TRANSFER_IDS + 1):
        node.post(m.PrefillEnd(m.TransferId(transfer_id)))
    node.run()
    assert len(node.all_said(m.TransferEnded)) == TRANSFER_IDS


def test_an_engine_with_nothing_to_do_wakes_for_whoever_is_due(tmp_path: Path) -> None:
    """No message comes and no forward runs while the last requests wait."""
    parts = few_slots()
    config = engine_config(tmp_path, queue_timeout=0.3, max_batch=2 * TRANSFER_IDS)
    cache = build_cache(config, parts)
    engine = build_prefill_engine(config, parts, cache, sender_over(parts))
    said: SimpleQueue[Sequence[m.Outbox]] = SimpleQueue()
    failures: list[str] = []
    thread = EngineThread(engine, said.put, failures.append)
    thread.start()
    try:
        for asked in transfers():
            thread.post(asked)
        # Empty while the engine still sleeps.
        while not (
            refused := [
                e for e in said.get(timeout=HANG_SECONDS) if isinstance(e, m.PrefillRefused)
            ]
        ):
            pass
    finally:
        thread.stop()
    assert refused[0].error.kind is m.ErrorKind.QUEUE_TIMEOUT and not failures
