"""A stalled transfer ends in each state and on each side, by scripts. Every state that waits for a
peer has a deadline."""

from typing import Any

from tasuki.transfer.chunks.chunk import Destination
from tasuki.transfer.lifecycle import actions as do
from tasuki.transfer.lifecycle import events as on
from tasuki.transfer.lifecycle import messages as say
from tasuki.transfer.lifecycle.actions import Action, Loss
from tasuki.transfer.lifecycle.deadlines import (
    ProgressWatch,
    PullReceiverDeadlines,
    PullSenderDeadlines,
    ReceiverDeadlines,
    SenderDeadlines,
)
from tasuki.transfer.lifecycle.fence import FenceTerms
from tasuki.transfer.lifecycle.receiving import Receiving, ReceivingTerms
from tasuki.transfer.lifecycle.states import (
    HANDOVER,
    PULL_RECEIVER,
    PULL_SENDER,
    RECEIVER,
    SENDER,
    Table,
)
from tests.harness.core_script import core
from tests.harness.interaction import Script, play, scripts


@scripts(__file__)
def test_script(script: Script) -> None:
    play(script, core)


def states(table: Table[Any, Any]) -> list[Any]:
    found = {state for state, _ in table} | set(table.values())
    return sorted(found, key=lambda state: state.name)


AWAITING = [
    *((ReceiverDeadlines(), s) for s in states(RECEIVER)),
    *((SenderDeadlines(), s) for s in states(SENDER)),
    *((PullReceiverDeadlines(), s) for s in states(PULL_RECEIVER)),
    *((PullSenderDeadlines(), s) for s in states(PULL_SENDER)),
]
AWAIT_NO_CLIENT = {"NEW", "IDLE", "DONE", "REFUSED", "ENDED", "COMMITTED"}
FENCED_BY_EVIDENCE = {"QUARANTINED"}


def test_every_state_in_which_somebody_is_awaited_has_a_deadline() -> None:
    wrong = [
        f"{type(deadlines).__name__}: {state.name}"
        for deadlines, state in AWAITING
        if (0 < deadlines.of(state) < 3600) == (state.name in AWAIT_NO_CLIENT | FENCED_BY_EVIDENCE)
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


def lost_at(others: int) -> tuple[int, Loss]:
    """Return the second and the reason of the loss of a granted transfer without arriving data.
    others: layer chunks of other transfers that arrive in each second."""
    fence = FenceTerms(5.0, 1.0, 0.0, acknowledge=3.0, patience=10.0)
    transfer = Receiving(HANDOVER, 7, 1, ReceivingTerms(ReceiverDeadlines(), fence), 0.0)
    for event in (on.Begin(), say.Accepted(), say.Grant(1, Destination(0, (3,), 9))):
        transfer.step(event, 0.0)
    done: list[Action] = []
    second = 0
    while not done:
        second += 1
        done = transfer.step(on.Look(others=others * second), float(second))
    assert isinstance(done[0], do.TellLost)
    return second, done[0].loss


def test_a_granted_room_waits_for_those_before_it_as_long_as_they_move() -> None:
    assert lost_at(others=0) == (31, Loss.STALLED)
    assert lost_at(others=1) == (62, Loss.QUEUE_TIMEOUT)
