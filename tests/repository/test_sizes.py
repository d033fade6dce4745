"""Sizes of production's Python modules and folders; see docs/design.md, "Folders"."""

from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath

from scripts.docs.house_counts import ROOMS, sources

LEAST_LINES, MOST_LINES = 80, 400
UNCOUNTED = {"__init__.py", "main.py", "config.py"}
"""Files without a bound: their length follows from a package's names, a program's steps or its
flags."""
OPERATORS = ("model/ops/",)
"""Folders without a bound: an operator is as long as its algorithm."""

BOUNDS: Mapping[str, float] = {
    "least percent of modules from 80 to 400 lines": 80,
    "most lines of a module": 700,
    "most folders of one file": 0,
}


def size_faults(lines: Mapping[str, int], bounds: Mapping[str, float]) -> Iterator[str]:
    """Yield a text for each bound broken by the modules.

    lines: line count of each module, by path below the root.
    """
    modules = {
        path: count
        for path, count in lines.items()
        if PurePosixPath(path).name not in UNCOUNTED and not path.startswith(OPERATORS)
    }
    outside = {path for path, count in modules.items() if not LEAST_LINES <= count <= MOST_LINES}
    percent = 100 * (1 - len(outside) / len(modules))
    if percent < bounds["least percent of modules from 80 to 400 lines"]:
        listed = "\n".join(f"  {path}: {modules[path]}" for path in sorted(outside))
        yield f"{percent:.1f}% of modules have 80 to 400 lines; the others:\n{listed}"
    for path, count in modules.items():
        if count > bounds["most lines of a module"]:
            yield f"{path} has {count} lines"
    alone = sorted(folders_of_one_file(lines))
    if len(alone) > bounds["most folders of one file"]:
        yield f"folders of one file: {', '.join(alone)}"


def folders_of_one_file(paths: Mapping[str, int]) -> Iterator[str]:
    """Yield folders with one module besides `__init__.py` and no subfolder."""
    files = Counter(path.parent for path in map(PurePosixPath, paths) if path.name != "__init__.py")
    parents = {folder.parent for folder in files}
    for folder, count in files.items():
        if count == 1 and folder not in parents:
            yield str(folder)


def test_modules_and_folders_keep_the_size_rule() -> None:
    lines = {
        path: text.count("\n") for path, text in sources(".").items() if path.split("/")[0] in ROOMS
    }
    assert len(lines) > 400
    faults = list(size_faults(lines, BOUNDS))
    assert not faults, "\n".join(faults)


def test_each_bound_names_the_modules_that_break_it() -> None:
    bounds = dict(zip(BOUNDS, (60, 500, 0), strict=True))
    kept = {"a/x.py": 80, "a/y.py": 400, "a/__init__.py": 1, "a/main.py": 7, "model/ops/z.py": 900}
    kept["model/ops/w.py"] = 5
    assert list(size_faults(kept, bounds)) == []
    (share,) = size_faults({**kept, "a/short.py": 79, "a/long.py": 401}, bounds)
    assert share == "50.0% of modules have 80 to 400 lines; the others:\n" + (
        "  a/long.py: 401\n  a/short.py: 79"
    )
    longest, alone = size_faults({**kept, "a/b/long.py": 501}, bounds)
    assert longest == "a/b/long.py has 501 lines"
    assert alone == "folders of one file: a/b"
