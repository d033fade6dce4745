"""Imports point downward only; see docs/design.md, "Folders"."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEVEL = {
    "client": 7,
    "replay": 6,
    "bench": 7,
    "prefill_node": 6,
    "decode_node": 6,
    "front": 5,
    "dashboard": 4,
    "engine": 3,
    "model": 2,
    "transfer": 2,
    "pycache": 1,
    "proto": 0,
}
SCRIPTS = {ROOT / "bench" / "cache", ROOT / "bench" / "traces"}
SOURCES = sorted(
    path
    for part in LEVEL
    for path in (ROOT / part).rglob("*.py")
    if not SCRIPTS.intersection(path.parents)
)


def imported_parts(path: Path) -> set[str]:
    """Top-level tasuki folders that a file names in any import, relative or absolute, at any
    depth."""
    package = path.relative_to(ROOT).parts[:-1]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            if node.level:
                base = package[: len(package) - node.level + 1]
                names = [(*base, *(node.module or "").split("."))]
                if not node.module:
                    names = [(*base, alias.name) for alias in node.names]
            else:
                names = [tuple((node.module or "").split("."))]
                names = [name[1:] for name in names if name[0] == "tasuki"]
        elif isinstance(node, ast.Import):
            names = [tuple(alias.name.split(".")) for alias in node.names]
            names = [name[1:] for name in names if name[0] == "tasuki"]
        else:
            continue
        found |= {name[0] for name in names if name and name[0] in LEVEL}
    return found


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downward(path: Path) -> None:
    own = path.relative_to(ROOT).parts[0]
    upward = {part for part in imported_parts(path) if part != own and LEVEL[part] >= LEVEL[own]}
    assert not upward, f"{path.relative_to(ROOT)} imports {sorted(upward)}, which stand above it"


def test_the_check_sees_relative_and_absolute_imports(tmp_path: Path) -> None:
    assert imported_parts(ROOT / "engine" / "runner.py") >= {"model", "pycache", "transfer"}
    assert len(SOURCES) > 40
