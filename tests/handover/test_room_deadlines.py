"""A room that stands still ends, in each state and on each side: by scripts; and every state in
which somebody is awaited has a deadline."""

from typing import Any

from tasuki.transfer.rooms.deadlines import (
    ProgressWatch,
    PullReceiverDeadlines,
    PullSenderDeadlines,
    ReceiverDeadlines,
    SenderDeadlines,
)
from tasuki.transfer.rooms.states import PULL_RECEIVER, PULL_SENDER, RECEIVER, SENDER, Table
from tests.harness.handover_script import handover
from tests.harness.interaction import Script, play, scripts


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, handover)


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


def test_every_state_in_which_somebody_is_awaited_has_a_deadline() -> None:
    wrong = [
        f"{type(deadlines).__name__}: {state.name}"
        for deadlines, state in AWAITING
        if (0 < deadlines.of(state) < 3600) == (state.name in AWAIT_NOBODY | FENCED_BY_EVIDENCE)
    ]
    assert len(AWAITING) > 25 and not wrong


def test_a_watch_counts_from_the_last_move() -> None:
    watch = ProgressWatch(1.0, 100.0)
    assert watch.still("a", 100.0) == 0.0
    for second in range(1, 6):
        assert watch.still("a", 100.0 + second) == second
    assert watch.still("b", 106.0) == 0.0


def test_a_watch_that_was_frozen_blames_nobody_for_its_own_gap() -> None:
    watch = ProgressWatch(1.0, 100.0)
    watch.still("a", 100.0)
    assert watch.still("a", 1100.0) <= 2.0
