"""The models of the hand-over, of its return path, of retries and of nodes of several ranks hold in
every run. Their mutations do not. The models equal the tables in the code."""

import re
import shutil
import subprocess
from enum import Enum
from pathlib import Path

import pytest

from tasuki.engine.request import MOVES
from tasuki.transfer.lifecycle.states import (
    PULL_RECEIVER,
    PULL_SENDER,
    RECEIVER,
    SENDER,
    IllegalTransition,
    ReceiverState,
    SenderEvent,
    SenderState,
    receiver_machine,
    sender_machine,
)

MODELS = Path(__file__).parents[2] / "transfer" / "protocol" / "spin"
HANDOVER, PULL, RETRY, RANKS = (
    MODELS / f"{name}.pml" for name in ("handover", "pull", "retry", "ranks")
)

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None,
    reason="spin or a C compiler is not installed",
)


def verify(
    folder: Path, model: Path, define: str, compile_flags: list[str], run_flags: list[str]
) -> int:
    """Return the errors found by an exhaustive run; assert that it was exhaustive. define:
    definitions for the preprocessor, separated by spaces."""
    # Compiling takes longer than running, but for the whole of the largest model.
    optimise = "-O1" if model == HANDOVER and not define else "-O0"
    defines = [f"-D{each}" for each in define.split()]
    for command in (
        ["spin", *defines, "-a", str(model)],
        ["cc", optimise, "-w", *compile_flags, "-o", "pan", "pan.c"],
    ):
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stdout + done.stderr
    done = subprocess.run(
        ["./pan", "-m100000", *run_flags], cwd=folder, capture_output=True, text=True, timeout=120
    )
    assert "max search depth too small" not in done.stdout, "not exhaustive"
    found = re.search(r"errors: (\d+)", done.stdout)
    assert found, done.stdout + done.stderr
    return int(found.group(1))


SAFETY = (["-DSAFETY", "-DNOCLAIM"], [])
ENDS = (["-DNP", "-DNOCLAIM"], ["-l"])
"""Every run ends: no cycle is without progress, and no label is marked as progress."""


def always(claim: str) -> tuple[list[str], list[str]]:
    return [], ["-a", "-N", claim]


def name(value: Path | str | tuple[list[str], list[str]]) -> str:
    """Return a parameter's name in a test's id."""
    match value:
        case Path():
            return value.stem
        case str():
            return value
        case compile_flags, run_flags:
            return "".join(compile_flags + run_flags)


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "define", "how"),
    [
        (HANDOVER, "", SAFETY),
        (HANDOVER, "", ENDS),
        (HANDOVER, "", always("nothing_before_done")),
        (HANDOVER, "", always("ready_at_most_once")),
        # With an early step.
        (HANDOVER, "EARLY", SAFETY),
        (PULL, "", SAFETY),
        (PULL, "", ENDS),
        (PULL, "", always("nothing_before_done")),
        (RETRY, "", SAFETY),
        (RETRY, "", ENDS),
        (RANKS, "SENDERS=1 RECEIVERS=2", SAFETY),
        (RANKS, "SENDERS=2 RECEIVERS=1", SAFETY),
        (RANKS, "SENDERS=2 RECEIVERS=3", SAFETY),
        (RANKS, "SENDERS=3 RECEIVERS=2", SAFETY),
        (RANKS, "", SAFETY),
        (RANKS, "", ENDS),
        (RANKS, "", always("nothing_before_all_landed")),
    ],
    ids=name,
)
def test_the_model_holds(
    tmp_path: Path, model: Path, define: str, how: tuple[list[str], list[str]]
) -> None:
    assert verify(tmp_path, model, define, *how) == 0


@needs_spin
@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "mutation", "how"),
    [
        (HANDOVER, "NO_FENCE", SAFETY),
        (HANDOVER, "NO_DRAIN", SAFETY),
        (HANDOVER, "NO_LEASE", SAFETY),
        (HANDOVER, "NO_STEP_END", SAFETY),
        (HANDOVER, "NO_VERIFY", always("nothing_before_done")),
        (PULL, "NO_FENCE", SAFETY),
        (PULL, "NO_DRAIN", SAFETY),
        (PULL, "NO_LEASE", SAFETY),
        (PULL, "NO_SEVER", SAFETY),
        (PULL, "NO_PIN", SAFETY),
        (PULL, "NO_VERIFY", always("nothing_before_done")),
        (RETRY, "NO_QUARANTINE", SAFETY),
        (RETRY, "TOKEN_TWICE", SAFETY),
        (RETRY, "STALE_DONE", SAFETY),
        (RANKS, "OWN_STEPS", SAFETY),
        (RANKS, "OWN_END", SAFETY),
        (RANKS, "FENCE_BY_RANK", SAFETY),
    ],
    ids=name,
)
def test_what_is_left_out_is_missed(
    tmp_path: Path, model: Path, mutation: str, how: tuple[list[str], list[str]]
) -> None:
    assert mutation in model.read_text()
    assert verify(tmp_path, model, mutation, *how) > 0


def rows(model: Path, macro: str) -> set[tuple[str, ...]]:
    """Return the arguments at each use of a macro in the model."""
    text = "\n".join(
        line for line in model.read_text().splitlines() if not line.startswith("#define")
    )
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return {
        tuple(argument.strip() for argument in found.split(","))
        for found in re.findall(rf"\b{macro}\(([\w, ]+)\)", text)
    }


@pytest.mark.parametrize(
    ("model", "role", "table"),
    [
        (HANDOVER, "SENDER", SENDER),
        (HANDOVER, "RECEIVER", RECEIVER),
        (PULL, "SENDER", PULL_SENDER),
        (PULL, "RECEIVER", PULL_RECEIVER),
    ],
)
def test_model_and_table_have_the_same_rows(
    model: Path, role: str, table: dict[tuple[Enum, Enum], Enum]
) -> None:
    ours = {(state.name, event.name, after.name) for (state, event), after in table.items()}
    assert rows(model, role) == ours


def test_a_request_moves_as_in_the_model_of_retries() -> None:
    modelled = rows(RETRY, "MOVE")
    states = {state for move in modelled for state in move}
    ours = {
        (state.__name__, after.__name__)
        for state, afters in MOVES.items()
        for after in afters
        if {state.__name__, after.__name__} <= states
    }
    assert len(states) == 6 and modelled == ours


@pytest.mark.parametrize(
    ("handover", "pull", "first"),
    [(SENDER, PULL_SENDER, SenderState.IDLE), (RECEIVER, PULL_RECEIVER, ReceiverState.NEW)],
)
def test_every_state_is_reachable_and_every_event_used(
    handover: dict[tuple[Enum, Enum], Enum], pull: dict[tuple[Enum, Enum], Enum], first: Enum
) -> None:
    states = set()
    for table in (handover, pull):
        reached = {first}
        for _ in table:
            reached |= {after for (state, _), after in table.items() if state in reached}
        assert reached == {state for state, _ in table} | set(table.values())
        states |= reached
    assert states == set(type(first))
    events = {event for _, event in (*handover, *pull)}
    assert events == set(type(next(iter(events))))


def test_illegal_moves_raise_naming_both_and_change_nothing() -> None:
    machine = sender_machine()
    for event in SenderEvent:
        if machine.allows(event):
            continue
        with pytest.raises(IllegalTransition, match=f"IDLE knows no {event.name}"):
            machine.apply(event)
        assert machine.state is SenderState.IDLE
    assert receiver_machine().state is ReceiverState.NEW
