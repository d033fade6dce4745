"""Tests of completion scripts, run by their own shells, and of the progress bar of a long start."""

import io
from contextlib import redirect_stdout
from functools import cache

import pytest

from tasuki.cli import completion
from tasuki.utils.logs import progress_bar
from tasuki.utils.program import COMMANDS
from tests.harness.programs import output_of, program


@cache
def script(shell: str) -> str:
    said = io.StringIO()
    with redirect_stdout(said):
        assert completion.main([shell]) == 0
    return said.getvalue()


def completed(*words: str) -> set[str]:
    """Return bash's completions of the last word."""
    quoted = " ".join(f"'{word}'" for word in ("tasuki", *words))
    ask = f"COMP_WORDS=({quoted}); COMP_CWORD={len(words)}; _tasuki; echo ${{COMPREPLY[@]}}"
    return set(output_of(["bash", "-c", f"{script('bash')}\n{ask}"]).split())


def test_commands_flags_and_choices_are_completed() -> None:
    assert completed("") == {*COMMANDS, "version"}
    assert completed("de") == {"demo", "decode"}
    assert completed("decode", "--pre") == {
        *("--prefill", "--prefill-file", "--prefill-ca", "--prefill-chunk-tokens")
    }
    assert completed("serve", "--dtype", "") == {"auto", "float32", "bfloat16"}
    assert completed("completion", "z") == {"zsh"}
    assert completed("serve", "folder") == set()


def test_every_command_describes_itself() -> None:
    for name in COMMANDS:
        if name not in ("completion", "bench"):
            assert completion.described(name).flags, name


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_other_shells_accept_theirs(shell: str) -> None:
    assert "decode" in script(shell) and "prefill-file" in script(shell)
    output_of([program(shell, f"install Debian's {shell}"), "-n", "-c", script(shell)])


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_bar_is_drawn_on_terminals_only() -> None:
    log, terminal, now = io.StringIO(), Terminal(), [0.0]
    for stream in (log, terminal):
        show = progress_bar("weights", stream, lambda: now[0])
        for done in range(1, 9):
            now[0] += 0.02
            show(done, 8)
    assert log.getvalue() == ""
    frames = terminal.getvalue().split("\r")[1:]
    assert 3 <= len(frames) < 8, "not a frame a step"
    assert "8/8" in frames[-1] and frames[-1].endswith(" s\n")
    assert frames[-1].count("#") == 30 and frames[0].count(".") > 0
