"""The C++ part's folders include downward only and stay small; see docs/design.md, "Folders"."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2] / "cpp_cache"
LEVEL = {
    "bindings": 8,
    "dataplane_bindings": 7,
    "cache": 7,
    "placement": 6,
    "requests": 5,
    "tiers": 4,
    "fleet": 4,
    "events": 3,
    "view": 3,
    "tree": 2,
    "alloc": 1,
    "nodes": 1,
    "policy": 1,
    "trials": 1,
    "dataplane": 1,
    "steps": 0,
    "core": 0,
    "digest": 0,
}
FILES = sorted(
    path for folder in LEVEL for end in ("h", "cpp") for path in (ROOT / folder).rglob(f"*.{end}")
)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)


def included(path: Path) -> list[str]:
    """Return the project's files included by a file, relative to the C++ part's root."""
    return _INCLUDE.findall(path.read_text())


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def include_faults(path: Path) -> Iterator[str]:
    """Yield one text for each include that is missing or not below the file."""
    own = path.parent.name
    for include in included(path):
        folder = include.split("/")[0]
        if not (ROOT / include).is_file():
            yield f"{name(path)} includes {include} by another path"
        elif folder != own and LEVEL[folder] >= LEVEL[own]:
            yield f"{name(path)} includes {include}: not below it"


def test_includes_point_downward() -> None:
    faults = [fault for path in FILES for fault in include_faults(path)]
    assert not faults, "\n".join(faults)


def test_no_file_reaches_itself() -> None:
    """Count a header and its source file as one."""
    reached = {
        str(path.relative_to(ROOT).with_suffix("")): {
            include.removesuffix(".h") for other in _sides(path) for include in included(other)
        }
        - {str(path.relative_to(ROOT).with_suffix(""))}
        for path in FILES
    }
    while reached:
        lowest = {unit for unit, below in reached.items() if not below & reached.keys()}
        assert lowest, f"a circle among {sorted(reached)}"
        for unit in lowest:
            del reached[unit]


def test_every_folder_has_a_level_and_at_most_sixteen_files() -> None:
    folders = {path.name for path in ROOT.iterdir() if path.is_dir()}
    assert folders == LEVEL.keys() | {"tests", "dataplane_tests"}
    sizes = Counter(path.parent for path in FILES)
    assert max(sizes.values()) <= 16, sizes.most_common(3)
    assert {path.parent.parent for path in FILES} == {ROOT}, "a folder inside a folder"


def test_the_build_names_every_folder() -> None:
    build = (ROOT / "CMakeLists.txt").read_text()
    named = re.search(r"set\(folders ([^)]*)\)", build)
    assert named is not None
    assert {*named[1].split(), "bindings", "dataplane_bindings"} == LEVEL.keys()


def _sides(path: Path) -> list[Path]:
    return [side for end in (".h", ".cpp") if (side := path.with_suffix(end)).is_file()]
