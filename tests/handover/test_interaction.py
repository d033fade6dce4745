"""The player of scripts: a script that does not hold fails and shows the place."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.harness import interaction
from tests.harness.interaction import RealTime, play, read


class Echo(RealTime):
    """A world that returns a command's words on the track named by the command: `decode A B`."""

    def __init__(self) -> None:
        self._came: dict[str, list[str]] = {}

    async def do(self, command: str, words: list[str], named: dict[str, str]) -> None:
        self._came.setdefault(command, []).extend([*words, *map("=".join, named.items())])

    def came(self) -> dict[str, list[str]]:
        return self._came

    def taken(self) -> None:
        self._came = {}

    async def end(self) -> None:
        assert "left" not in self._came


@asynccontextmanager
async def echo() -> AsyncIterator[Echo]:
    yield Echo()


Written = Callable[[str], Path]


@pytest.fixture
def written(tmp_path: Path) -> Written:
    def write(text: str) -> Path:
        (path := tmp_path / "some.txt").write_text(text)
        return path

    return write


def test_each_alternative_is_a_script_and_a_pattern_holds_for_all(written: Written) -> None:
    scripts = read(
        written("# why\n= A title's words\ndecode A|B key=C|D\n  decode: ... -> key=...\n")
    )
    assert [str(script) for script in scripts] == [
        f"test_a_title_s_words-{first}-{second}" for first in "AB" for second in "CD"
    ]
    for script in scripts:
        play(script, echo)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("d A B\np C\n  d: A -> B\n  p: D", "differs\n  expected: p: D\n  came:     p: C"),
        ("d A\n  d: B", "some.txt:3, test_t, after d A: differs"),
        ("d A\n  d: A -> A", "expected: d: A -> A\n  came:     d: A$"),
        ("d A\n  d: A\nd B", "came too: .*d: B"),
        ("d A B\n  d: A", "came:     d: A -> B"),
        ("d A\np B\n  p: B", "expected: \n  came:     d: A"),
        ("d A\nnothing-for 0\n  d: A", "came while nothing was to: .*d: A"),
    ],
)
def test_a_script_that_does_not_hold_shows_the_first_line_that_differs(
    written: Written, text: str, shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interaction, "HANG_SECONDS", 0.1)
    (script,) = read(written(f"= t\n{text}\n"))
    with pytest.raises(AssertionError, match=f"(?m){shown}"):
        play(script, echo)


def test_what_differs_is_written_anew_and_what_holds_is_kept(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interaction, "REWRITING", True)
    monkeypatch.setattr(Echo, "still", 0.01)
    path = written("= t\ndecode A B\n  ?\nprefill C\ndecode D\n  decode: ...\n  prefill: ?\n")
    (script,) = read(path)
    play(script, echo)
    kept = "= t\ndecode A B\n  decode: A -> B\nprefill C\ndecode D\n  decode: ...\n  prefill: C\n"
    assert path.read_text() == kept
    play(read(path)[0], echo)
