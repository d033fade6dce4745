"""A table of docs/clients.md that a run fills in: the rows of the clients that ran, the others' as
they were.

It stands between two comments with its name, a row a client, whose first cell begins with the
client's name.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"


def record(name: str, order: Sequence[str], rows: Mapping[str, str]) -> None:
    """name: of the table. order: all clients, as their rows stand. rows: client to its line, with
    the client and its version in the first cell. Raises ValueError where the document has no such
    table."""
    text = DOCUMENT.read_text(encoding="utf-8")
    DOCUMENT.write_text(with_rows(text, name, order, rows), encoding="utf-8")


def with_rows(text: str, name: str, order: Sequence[str], rows: Mapping[str, str]) -> str:
    table = re.compile(
        rf"(<!-- {re.escape(name)} -->\n\|[^\n]*\n\| ---[^\n]*\n)((?:\|[^\n]*\n)*)(<!-- end -->)"
    )
    found = table.search(text)
    if found is None:
        raise ValueError(f"{DOCUMENT} has no table {name}")
    before = {line.split()[1]: line for line in found[2].splitlines()}
    after = {**before, **rows}
    lines = "".join(f"{after[client]}\n" for client in order if client in after)
    return f"{text[: found.start()]}{found[1]}{lines}{found[3]}{text[found.end() :]}"
