"""Plays scripts of interactions, after etcd raft's data-driven tests: commands at the margin, and
their indented results below.

    = a fence that breaks is held again
    grant 5
    breaks client.fence once
    HandoverCancelled 5
      decode 5: GrantWanted -> WriterFenced
      prefill 5: PrefillReserve -> PrefillStart -> PrefillEnd

A title begins a script, `#` a comment. Commands run one after the other. Indented lines are all
results since the last ones; the player waits until they hold. `...` in them matches any text. A
script with `a|b` in a command is played with each. `nothing-for SECONDS` fails if a result comes in
this time after the last lines. The end of a script fails if a result is in no line. REWRITE=1
writes the actual results into the file in place of lines that differ; read the change.
"""

import asyncio
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from itertools import product, zip_longest
from pathlib import Path
from typing import Protocol

import pytest

from tests.harness.waiting import HANG_SECONDS

REWRITING = "REWRITE" in os.environ
_THEN = " -> "
_NOTHING = "nothing-for"
_COMMENT, _TITLE, _INDENT = "#", "= ", "  "

Look = Callable[[], Iterable[str]]
"""A function returning lines of text about a state, current at each call."""


class World(Protocol):
    """The interface of the object performing a script's commands. look: seconds between two looks
    at the results. still: seconds without a new result until REWRITE writes them."""

    look: float
    still: float

    def now(self) -> float:
        """Return the seconds of this object's own clock, real or virtual."""

    async def sleep(self, seconds: float) -> None:
        """Wait for `seconds` of this object's own clock."""

    async def do(self, command: str, words: list[str], named: dict[str, str]) -> Look | None:
        """Run one command. words: its positional words. named: its words of the form name=value. A
        returned function gives further result lines."""

    def came(self) -> Mapping[str, list[str]]:
        """Return the results since the last taken(), in order, by track (for example a node and a
        transfer)."""

    def taken(self) -> None:
        """Mark the results last returned by came() as matched by a script's lines."""

    async def end(self) -> None:
        """Wait after a script's last line until everything begun by it is over."""


class RealTime:
    """The clock of an interaction in real time."""

    look, still = 0.002, 2.0

    def now(self) -> float:
        return time.monotonic()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@dataclass
class Block:
    """A part of a script: commands and their expected result lines. first: line number of the first
    expected line."""

    commands: list[str] = field(default_factory=list)
    expected: list[str] = field(default_factory=list)
    first: int = 0


@dataclass(frozen=True)
class Script:
    file: Path
    title: str
    blocks: tuple[Block, ...]
    choices: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the script as a test function would have it."""
        return "test_" + re.sub(r"[^a-z0-9]+", "_", self.title.lower())

    def __str__(self) -> str:
        return "-".join((self.name, *self.choices))


def read(file: Path) -> list[Script]:
    """Return the scripts of a file, one for each choice of alternatives."""
    titles: list[str] = []
    stories: list[list[Block]] = []
    for place, line in enumerate(file.read_text(encoding="utf-8").splitlines()):
        if line.startswith(_TITLE):
            titles.append(line.removeprefix(_TITLE))
            stories.append([Block()])
        elif line.startswith(_INDENT):
            block = stories[-1][-1]
            block.first = block.first or place
            block.expected.append(line.removeprefix(_INDENT))
        elif line and not line.startswith(_COMMENT):
            if stories[-1][-1].expected:
                stories[-1].append(Block())
            stories[-1][-1].commands.append(line)
    return [
        script
        for title, blocks in zip(titles, stories, strict=True)
        for script in _variants(Script(file, title, tuple(blocks)))
    ]


def _variants(script: Script) -> Iterable[Script]:
    """Yield the script with each combination of the alternatives in its words."""
    commands = "\n".join(line for block in script.blocks for line in block.commands)
    words = dict.fromkeys(re.findall(r"[^\s=]+(?:\|[^\s=]+)+", commands))
    for chosen in product(*(word.split("|") for word in words)):
        choices = dict(zip(words, chosen, strict=True))
        blocks = (
            replace(block, commands=[_chosen(line, choices) for line in block.commands])
            for block in script.blocks
        )
        yield replace(script, blocks=tuple(blocks), choices=chosen)


def _chosen(line: str, choices: Mapping[str, str]) -> str:
    for word, choice in choices.items():
        line = line.replace(word, choice)
    return line


def scripts(beside: str) -> pytest.MarkDecorator:
    """Parametrise a test's argument `script` by scripts/NAME.txt beside tests/.../test_NAME.py."""
    test = Path(beside)
    name = test.stem.removeprefix("test_")
    return pytest.mark.parametrize("script", read(test.parent / "scripts" / f"{name}.txt"), ids=str)


def play(script: Script, world: Callable[[], AbstractAsyncContextManager[World]]) -> None:
    """Play a script against `world`. Fails with the first line differing, and both texts."""

    async def scenario() -> None:
        async with world() as standing:
            await _Player(script, standing).play()

    asyncio.run(scenario())


class _Player:
    def __init__(self, script: Script, world: World) -> None:
        self._script = script
        self._world = world
        self._rewritten: dict[int, list[str]] = {}

    async def play(self) -> None:
        for number, block in enumerate(self._script.blocks):
            looks = [look for line in block.commands if (look := await self._do(line)) is not None]
            if block.expected and (came := await self._await(block, looks)):
                self._rewritten[number] = came
        async with asyncio.timeout(HANG_SECONDS):
            await self._world.end()
        if left := _lines(self._world.came()):
            raise AssertionError(f"{self._at(self._script.blocks[-1])} came too: {left}")
        _rewrite(self._script, self._rewritten)

    async def _do(self, line: str) -> Look | None:
        command, *rest = shlex.split(line)
        if command == _NOTHING:
            return await self._nothing_for(float(rest[0]))
        words = [word for word in rest if "=" not in word]
        named = dict(word.split("=", 1) for word in rest if "=" in word)
        try:
            async with asyncio.timeout(HANG_SECONDS):
                return await self._world.do(command, words, named)
        except Exception as error:
            error.add_note(f"{self._script.file.name}, {self._script.title}: {line}")
            raise

    async def _nothing_for(self, seconds: float) -> None:
        await self._world.sleep(seconds)
        came = _lines(self._world.came())
        assert not came, f"{self._script}: came while nothing was to: {came}"

    async def _await(self, block: Block, looks: list[Look]) -> list[str] | None:
        """Wait until the block's expected lines hold. Returns None, or the lines to write in their
        place."""
        world = self._world
        changed, before = world.now(), [""]
        while True:
            tracks = world.came()
            lines = [*_lines(tracks), *(line for look in looks for line in look())]
            if lines != before:
                changed, before = world.now(), lines
            if len(lines) == len(block.expected) and all(map(_alike, block.expected, lines)):
                world.taken()
                return None
            late = world.now() - changed > (world.still if REWRITING else HANG_SECONDS)
            if late and REWRITING:
                world.taken()
                return lines
            wrong = None if REWRITING else _contradiction(tracks, block.expected)
            if late or wrong is not None:
                raise AssertionError(self._difference(block, lines, wrong))
            await world.sleep(world.look)

    def _at(self, block: Block) -> str:
        commands = "; ".join(block.commands)
        return f"{self._script.file.name}:{block.first + 1}, {self._script}, after {commands}:"

    def _difference(self, block: Block, came: list[str], wrong: tuple[str, str] | None) -> str:
        pairs = zip_longest(block.expected, came, fillvalue="")
        expected, line = wrong or next(pair for pair in pairs if not _alike(*pair))
        both = [f"  expected: {expected}", f"  came:     {line}"]
        return "\n".join([f"{self._at(block)} differs", *both, "all that came:", *came])


def _lines(tracks: Mapping[str, list[str]]) -> list[str]:
    return [f"{track}: {_THEN.join(items)}" for track, items in sorted(tracks.items()) if items]


def _alike(pattern: str, text: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("..."))), text) is not None


def _contradiction(tracks: Mapping[str, list[str]], expected: list[str]) -> tuple[str, str] | None:
    """Return the first expected line no later result can fulfil, with its results; None if there is
    none."""
    for track, items in sorted(tracks.items()):
        line = next((line for line in expected if line.startswith(f"{track}: ")), "")
        patterns = line.removeprefix(f"{track}: ").split(_THEN)
        if items and (len(items) > len(patterns) or not all(map(_alike, patterns, items))):
            return line, f"{track}: {_THEN.join(items)}"
    return None


def _rewrite(script: Script, came: Mapping[int, list[str]]) -> None:
    """Write the actual results into the script's file. came: results by their block's number. The
    file is read again, because another script may have moved its lines."""
    if not came:
        return
    (blocks, *_) = (other.blocks for other in read(script.file) if other.title == script.title)
    text = script.file.read_text(encoding="utf-8").splitlines()
    # From the end, so that line numbers stay valid.
    for number, lines in sorted(came.items(), reverse=True):
        block = blocks[number]
        pairs = zip_longest(block.expected[: len(lines)], lines, fillvalue="")
        new = [old if _alike(old, line) else line for old, line in pairs]
        text[block.first : block.first + len(block.expected)] = [_INDENT + line for line in new]
    script.file.write_text("\n".join(text) + "\n", encoding="utf-8")
