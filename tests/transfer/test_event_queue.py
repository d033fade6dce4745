"""A room's events: in order, looked at in time where none comes, and at a price that hundreds of
rooms can pay."""

import asyncio
import time

from tasuki.transfer.rooms.event_queue import EventQueue
from tests.harness.waiting import HANG_SECONDS


def test_events_come_in_order_and_late_ones_are_left() -> None:
    async def scenario() -> None:
        events: EventQueue[int] = EventQueue(HANG_SECONDS)
        for event in (1, 2):
            events.put(event)
        assert [await events.next(), await events.get()] == [1, 2]
        taking = asyncio.ensure_future(events.next())
        await asyncio.sleep(0)
        for event in (3, 4, 5):
            events.put(event)
        assert await taking == 3
        assert events.take_all() == [4, 5] and events.take_all() == []
        events.close()

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))


def test_it_is_time_to_look_within_look_seconds_however_many_events_come() -> None:
    look = 0.05

    async def scenario() -> None:
        events: EventQueue[int] = EventQueue(look)
        loop = asyncio.get_running_loop()
        began, looked = time.monotonic(), 0
        # Events that come more often than that hide no look.
        ticking = [loop.call_later(0.02 * k, events.put, k) for k in range(1, 20)]
        for _ in range(3):
            while await events.next() is not None:
                pass
            looked += 1
        assert time.monotonic() - began >= look and looked == 3
        for timer in ticking:
            timer.cancel()
        events.close()

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))


def test_a_cancelled_taker_loses_no_event() -> None:
    async def scenario() -> None:
        events: EventQueue[int] = EventQueue(HANG_SECONDS)
        taking = asyncio.ensure_future(events.get())
        await asyncio.sleep(0)
        events.put(1)
        taking.cancel()
        await asyncio.wait({taking})
        assert taking.cancelled() and await events.next() == 1
        events.close()

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))


def test_an_event_costs_no_task_and_no_timer() -> None:
    """What a room costs the loop is counted: an event wakes its taker, and nothing else."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        timers: list[float] = []
        call_later = loop.call_later
        loop.call_later = lambda delay, *rest: (  # type: ignore[method-assign]
            timers.append(delay),
            call_later(delay, *rest),
        )[1]
        events: EventQueue[int] = EventQueue(HANG_SECONDS)
        tasks: set[asyncio.Task[object]] = set()

        async def take() -> None:
            for _ in range(100):
                await events.next()
                tasks.update(asyncio.all_tasks())

        taking = asyncio.ensure_future(take())
        known = asyncio.all_tasks()
        for event in range(100):
            events.put(event)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        await taking
        events.close()
        assert tasks <= known and timers == [HANG_SECONDS]

    asyncio.run(asyncio.wait_for(scenario(), HANG_SECONDS))
