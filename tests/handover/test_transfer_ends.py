"""Every transfer ends, by scripts. The tasks of a transfer end as well."""

import asyncio

import pytest

from tasuki.utils.loops import GuardedTasks
from tests.harness.handover_script import handover
from tests.harness.interaction import Script, play, scripts


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, handover)


@pytest.mark.parametrize("ignores", [False, True], ids=["obeys", "ignores its cancellation"])
async def test_tasks_end_in_bounded_time_and_tell_what_they_raised(
    monkeypatch: pytest.MonkeyPatch, ignores: bool
) -> None:
    monkeypatch.setattr("tasuki.utils.loops._END_SECONDS", 0.1)

    told: list[Exception] = []
    go = asyncio.Event()
    tasks = GuardedTasks("room-1", told.append)

    async def breaks() -> None:
        raise ValueError("a defect")

    async def waits() -> None:
        while True:
            try:
                await go.wait()
                return
            except asyncio.CancelledError:
                if not ignores:
                    raise

    tasks.start(breaks)
    tasks.start(waits)
    await asyncio.sleep(0.01)
    await tasks.end()
    assert [str(error) for error in told] == ["a defect"]
    go.set()
    await asyncio.sleep(0)
