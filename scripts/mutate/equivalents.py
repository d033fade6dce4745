"""Mutants that no test can distinguish from the code, with the reason: a table in docs/testing.md.

Pure but for reading the file. A row is `| `key` | reason |`.
"""

import re
from pathlib import Path

_ROW = re.compile(r"^\| `(?P<key>[^`]+)` \| (?P<reason>.+) \|$", re.MULTILINE)
_TITLE = "## Equivalent mutants"


def equivalents(document: Path) -> dict[str, str]:
    """Reasons by key."""
    if not document.exists():
        return {}
    _, _, section = document.read_text().partition(_TITLE)
    section = section.partition("\n## ")[0]
    return {row["key"].replace("\\|", "|"): row["reason"] for row in _ROW.finditer(section)}
