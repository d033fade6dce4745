"""The rows of a run as a table in Markdown, and as JSON. Pure."""

import platform
from collections.abc import Sequence
from typing import Any

import aiohttp

from tasuki.utils.version import package_version

from .outcome import Outcome, Row


def markdown(rows: Sequence[Row]) -> list[str]:
    """The table, and a line with the counts."""
    lines = ["| API | check | result | note |", "| --- | --- | --- | --- |"]
    for row in rows:
        note = row.note.replace("|", "\\|")
        lines.append(f"| {row.api} | {row.check} | {row.outcome.value} | {note} |")
    return [*lines, "", counts(rows)]


def counts(rows: Sequence[Row]) -> str:
    found = [row.outcome for row in rows]
    return ", ".join(f"{found.count(each)} {each.value}" for each in Outcome)


def as_json(url: str, model: str, rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "url": url,
        "model": model,
        "tasuki": package_version(),
        "python": platform.python_version(),
        "aiohttp": aiohttp.__version__,
        "rows": [
            {
                "api": row.api,
                "check": row.check,
                "outcome": row.outcome.value,
                "note": row.note,
            }
            for row in rows
        ],
    }
