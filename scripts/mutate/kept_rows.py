"""Rows of a file that only grows, a JSON line each: what a run that was killed leaves is read too.

Thread rule: none of its own; one writer at a time.
"""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any


def read(path: Path) -> list[dict[str, Any]]:
    """Its rows; none where there is no file. A last line that was not written whole is left out.
    Raises ValueError where another is none."""
    if not path.exists():
        return []
    *whole, _torn = path.read_text().split("\n")
    return [json.loads(line) for line in whole]


def add(path: Path, row: Mapping[str, Any]) -> None:
    with path.open("a") as file:
        file.write(_line(row))


def replace(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """The file has these, all or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text("".join(map(_line, rows)))
    fresh.replace(path)


def _line(row: Mapping[str, Any]) -> str:
    return f"{json.dumps(row)}\n"
