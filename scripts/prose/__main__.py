"""`python -m scripts.prose [--list ROW] [KIND ...]`: counts breaches of plain English, as Markdown
rows.

(a) relative words a hundred words, (b) sentences starting with one of eight words, (c) sentences
without a verb, (d) sentences over 25 words, in percent; (e) help texts over 120 characters; (f)
commit subjects over 72 characters, in percent.
"""

import argparse
import sys
from collections.abc import Sequence

from .rows import Measured, measured
from .texts import Kind, texts

LETTERS = "abcdef"


def table(all_measured: Sequence[Measured]) -> str:
    """Return a Markdown table with one line for each kind of text."""
    lines = [
        "| kind | words | " + " | ".join(f"({row})" for row in LETTERS) + " |",
        "| --- |" + " ---: |" * (1 + len(LETTERS)),
    ]
    for found in all_measured:
        values = (f"{found.rows[row].value:.1f}" if row in found.rows else "" for row in LETTERS)
        lines.append(f"| {found.kind} | {found.words} | " + " | ".join(values) + " |")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.prose", description=__doc__)
    parser.add_argument("kinds", nargs="*", type=Kind, metavar="KIND", help="kinds to measure")
    parser.add_argument("--list", choices=LETTERS, help="row to list by place")
    parser.add_argument("--under", default="", help="folder or file of the listed places")
    asked = parser.parse_args(arguments)
    found = [measured(kind, texts(kind)) for kind in asked.kinds or Kind]
    if not asked.list:
        print(table(found))
        return 0
    for breach in (breach for of_kind in found for breach in of_kind.breaches):
        if breach.row == asked.list and breach.place.startswith(asked.under):
            print(f"{breach.place}: {breach.text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
