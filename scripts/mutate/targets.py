"""The mutated source files, and the tests expected to notice the mutants: tests next to a file,
taking seconds.

targets.toml lists them. A file is named by the end of its module's name, so it may move.
"""

import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from scripts.common.package_copy import CPP_TESTS, tracked
from scripts.mutate import cpp_source, python_source
from scripts.mutate.mutant import Mutant

ROOT = Path(__file__).parents[2]
_NOT_MUTATED = ("tests", "scripts", "bench", "tools")


@dataclass(frozen=True)
class Target:
    """One target of mutations. area: its name in the table of results. name: name of a module, or
    of a symbol in it. tests: names of files below tests/, in order of trying them; CPP_TESTS, the
    C++ program, first."""

    area: str
    name: str
    tests: tuple[str, ...]

    @cached_property
    def runs(self) -> tuple[str, ...]:
        """Return the target's test files, relative to the root. Raises ValueError unless each name
        matches exactly one file."""
        names = [test for test in self.tests if test != CPP_TESTS]
        files = [file for name in names for (file,) in (ROOT.glob(f"tests/*/{name}.py"),)]
        return tuple(str(file.relative_to(ROOT)) for file in files)


def _targets(language: str) -> Iterator[Target]:
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    for area, rows in table[language].items():
        for names, tests in rows.items():
            named = " ".join(table["groups"].get(test, test) for test in tests.split()).split()
            yield from (Target(area, name, tuple(named)) for name in names.split())


PYTHON, CPP = tuple(_targets("python")), tuple(_targets("cpp"))


@dataclass(frozen=True)
class Aim:
    """One mutant with its source file and its target. The target's tests should notice the
    mutant."""

    target: Target
    path: Path
    mutant: Mutant

    @property
    def is_cpp(self) -> bool:
        return self.path.suffix == ".cpp"


def aims(root: Path) -> list[Aim]:
    """Return every mutant of every target, in the order of targets.toml and of the sources."""
    paths = [path for path in tracked(root) if path.parts[0] not in _NOT_MUTATED]
    found = []
    for targets, suffix, reader in (
        (PYTHON, ".py", python_source.mutants_of),
        (CPP, ".cpp", cpp_source.mutants_of),
    ):
        for target in targets:
            path, module = _file_of(target.name, [path for path in paths if path.suffix == suffix])
            for mutant in reader((root / path).read_bytes(), module):
                if f"{mutant.edit.symbol}.".startswith(f"{target.name}."):
                    found.append(Aim(target, path, mutant))
    return found


def _file_of(name: str, paths: list[Path]) -> tuple[Path, str]:
    """Return the one file with a module name ending in `name`, or in a front part of it before a
    symbol. Also return this part. Raises ValueError."""
    words = name.split(".")
    for length in range(len(words), 0, -1):
        end = tuple(words[:length])
        fitting = [path for path in paths if path.with_suffix("").parts[-length:] == end]
        if len(fitting) > 1:
            raise ValueError(f"{name} is the name of {fitting}: write more of it")
        if fitting:
            return fitting[0], ".".join(end)
    raise ValueError(f"no file of a module {name}: does scripts/mutate/targets.toml name it right?")
