"""`python -m scripts.conformance.tables FILE ...`: prints files of `tasuki conformance --json` as
tables, a row for each check, a column for each API. After each table come the received values with
a difference from the expected ones."""

import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.common.command import head
from scripts.common.command import row as line

_CELLS = {"passed": "yes", "failed": "**no**", "skipped": "skipped"}
_MOST_SHOWN = 140
_REFUSAL = ": a refusal of the API's shape"


def main(argv: Sequence[str]) -> int:
    for name in argv:
        run = json.loads(Path(name).read_text(encoding="utf-8"))
        print("\n".join(table(run["rows"])))
        print()
    return 0


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a Markdown table of checks, then a line for each note with its check and APIs."""
    apis = list(dict.fromkeys(row["api"] for row in rows))
    found: dict[str, dict[str, str]] = defaultdict(dict)
    notes: dict[tuple[str, str], list[str]] = defaultdict(list)
    for row in rows:
        check = row["check"].replace(_REFUSAL, " is refused in the API's shape")
        found[check][row["api"]] = _CELLS[row["outcome"]]
        if row["note"]:
            notes[check, _shortened(row["note"])].append(row["api"])
    lines = [head("check", *apis)]
    for check, cells in found.items():
        lines.append(line(check, *(cells.get(api, "-") for api in apis)))
    lines.append("")
    lines += [f"- {check} ({', '.join(of)}): `{note}`" for (check, note), of in notes.items()]
    return lines


def _shortened(note: str) -> str:
    plain = note.replace("`", "'")
    return plain if len(plain) <= _MOST_SHOWN else f"{plain[:_MOST_SHOWN]}..."


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
