"""Tests of names: things are called sent, shown, reported or received; they do not tell and
hear."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
_SOURCES = ("*.py", "*.pyi", "*.h", "*.cpp", "*.proto", ":!tests")
_PERSONAL = re.compile(r"\b(told|tells?|untold|hears?|heard|whence)\b", re.IGNORECASE)
MOST = 20
"""Number of lines allowed for people, who do tell and hear: the demo's letters, prompts of
examples."""


def test_sources_name_things_for_what_they_do() -> None:
    listed = ["git", "-C", str(ROOT), "ls-files", *_SOURCES]
    files = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.split()
    found = [
        f"{file}: {line.strip()}"
        for file in files
        for line in (ROOT / file).read_text(encoding="utf-8").splitlines()
        if _PERSONAL.search(line)
    ]
    assert len(files) > 400 and len(found) <= MOST, "\n".join(found)
