"""Threads of a store's reads and writes, shared by several copiers, and the order of the tiers'
ends."""

import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from tasuki.engine.tiers.lower_tiers import LowerTiers
from tasuki.engine.tiers.store import IoThreads, within
from tasuki.engine.tiers.tier import LowerTier
from tests.harness.waiting import HANG_SECONDS


def test_a_run_returns_when_its_own_calls_have_ended() -> None:
    threads = IoThreads("test-io", 4)
    go, quick = threading.Event(), threading.Barrier(2, timeout=HANG_SECONDS)
    ended: list[str] = []

    def slow() -> None:
        assert go.wait(HANG_SECONDS)

    def both() -> None:
        quick.wait()

    def run(name: str, call: Callable[[], None]) -> None:
        threads.run([call, call])
        ended.append(name)

    waits = threading.Thread(target=run, args=("slow", slow))
    waits.start()
    # Calls of another run end meanwhile, as many as the first has.
    run("quick", both)
    assert ended == ["quick"]
    go.set()
    waits.join(HANG_SECONDS)
    assert ended == ["quick", "slow"]
    threads.close()


def test_an_error_is_of_the_run_whose_call_raised() -> None:
    threads = IoThreads("test-io", 2)

    def bad() -> None:
        raise OSError("bad")

    with pytest.raises(OSError, match="bad"):
        threads.run([bad, lambda: None])
    threads.run([lambda: None, lambda: None])
    threads.close()


def test_a_call_within_a_bound_raises_what_it_raised() -> None:
    def wrong() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        within(HANG_SECONDS, wrong, OSError("late"))
    with pytest.raises(OSError, match="late"):
        within(0.01, threading.Event().wait, OSError("late"))
    assert within(HANG_SECONDS, lambda: 3, OSError("late")) == 3


class Ending:
    """A copier, or a tier's storage, that records its close."""

    def __init__(self, name: str, said: list[str], is_stuck: bool = False) -> None:
        self._name, self._said, self._is_stuck = name, said, is_stuck

    def close(self, seconds: float = 0.0) -> bool:
        self._said.append(self._name)
        return not self._is_stuck


@pytest.mark.parametrize("stuck", [None, "remote", "disk"])
def test_what_a_copier_reads_is_closed_behind_it(stuck: str | None) -> None:
    said: list[str] = []
    tiers = []
    for name in ("host", "disk", "remote"):
        below = {} if name == "host" else {name: cast(Any, Ending(f"memory of {name}", said))}
        copier = cast(Any, Ending(name, said, name == stuck))
        tiers.append(LowerTier(name, copier, cast(Any, None), **below))
    closed = LowerTiers(cast(Any, None), cast(Any, None), tiers).close(1.0)
    assert closed == (stuck is None)
    # The remote copier reads the disk.
    assert (
        said
        == {
            None: ["remote", "memory of remote", "disk", "memory of disk", "host"],
            "remote": ["remote", "disk", "host"],
            "disk": ["remote", "memory of remote", "disk", "host"],
        }[stuck]
    )
