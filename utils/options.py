"""Fields of a configuration.

One field of a configuration, with the text, choices and bounds that its flag shows.

A setting that the program works out at its start.
"""

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Any

Headings = Mapping[str, tuple[str, ...]]
"""Of --help-all, each with the fields below it. A config may have them as its HEADINGS."""

MostAsked = Mapping[str, str]
"""The fields that --help shows, each with a text of one line. A config may have them as its
MOST_ASKED; what it leaves out, --help-all shows."""


LONGEST_SECONDS = 1e8
"""Three years: what is to last for ever. The system's calls take no time that is far beyond."""


def option(
    default: Any,
    text: str,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
    argument: str | None = None,
    unit: str | None = None,
) -> Any:
    """A dataclass field that is also a command-line flag. aliases: how other engines spell it.
    argument: its name in --help where it may also be given without its flag; None: it may not.
    unit: what --help shows for a value whose unit the field's name does not end with."""
    metadata: dict[str, Any] = {
        "help": text,
        "aliases": aliases,
        "argument": argument,
        "unit": unit,
    }
    if choices is not None:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)


class Auto(StrEnum):
    """Of a config's field `int | Auto`: as text "auto", on a command line and in a file."""

    AUTO = "auto"
