"""The hand-over's model holds in every run, its mutations do not, and it is the table of
protocol.py."""

import re
import shutil
import subprocess
from enum import Enum
from pathlib import Path

import pytest
from tasuki.transfer.protocol import (
    RECEIVER,
    SENDER,
    IllegalTransition,
    ReceiverState,
    SenderEvent,
    SenderState,
    receiver_machine,
    sender_machine,
)

MODEL = Path(__file__).parent.parent / "transfer" / "model" / "handover.pml"

needs_spin = pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("cc") is None,
    reason="spin or a C compiler is not installed",
)


def verify(folder: Path, define: str, compile_flags: list[str], run_flags: list[str]) -> int:
    """Errors that an exhaustive run finds; asserts that it was exhaustive."""
    defines = [f"-D{define}"] if define else []
    for command in (
        ["spin", *defines, "-a", str(MODEL)],
        ["cc", "-O1", "-w", *compile_flags, "-o", "pan", "pan.c"],
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


@needs_spin
@pytest.mark.parametrize(
    ("compile_flags", "run_flags"),
    [
        SAFETY,
        # No cycle without progress, and no label says progress: every run ends.
        (["-DNP", "-DNOCLAIM"], ["-l"]),
        ([], ["-a", "-N", "nothing_before_done"]),
        ([], ["-a", "-N", "ready_at_most_once"]),
    ],
    ids=["safety", "ends", "nothing_before_done", "ready_at_most_once"],
)
def test_the_model_holds(tmp_path: Path, compile_flags: list[str], run_flags: list[str]) -> None:
    assert verify(tmp_path, "", compile_flags, run_flags) == 0


@needs_spin
@pytest.mark.parametrize("mutation", ["NO_FENCE", "NO_DRAIN", "NO_LEASE"])
def test_a_late_write_is_found_where_the_fence_is_broken(tmp_path: Path, mutation: str) -> None:
    assert verify(tmp_path, mutation, *SAFETY) > 0


@needs_spin
def test_early_publication_is_found_where_nothing_is_verified(tmp_path: Path) -> None:
    assert verify(tmp_path, "NO_VERIFY", [], ["-a", "-N", "nothing_before_done"]) > 0


def rows(role: str) -> set[tuple[str, str, str]]:
    text = "\n".join(
        line for line in MODEL.read_text().splitlines() if not line.startswith("#define")
    )
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    return set(re.findall(rf"\b{role}\((\w+), (\w+), (\w+)\)", text))


@pytest.mark.parametrize(("role", "table"), [("SENDER", SENDER), ("RECEIVER", RECEIVER)])
def test_model_and_table_have_the_same_rows(
    role: str, table: dict[tuple[Enum, Enum], Enum]
) -> None:
    ours = {(state.name, event.name, after.name) for (state, event), after in table.items()}
    assert rows(role) == ours


@pytest.mark.parametrize(
    ("table", "first"), [(SENDER, SenderState.IDLE), (RECEIVER, ReceiverState.NEW)]
)
def test_every_state_is_reachable_and_every_event_used(
    table: dict[tuple[Enum, Enum], Enum], first: Enum
) -> None:
    reached = {first}
    for _ in table:
        reached |= {after for (state, _), after in table.items() if state in reached}
    assert reached == set(type(first))
    events = {event for _, event in table}
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
