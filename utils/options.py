"""Settings of a program: the fields of a configuration, and a TOML file of their values.

option(): one field of a configuration, with the text, choices and bounds that its flag shows.

`Auto`: a setting that the program works out at its start.

file_settings(): a daemon's settings in a TOML file: `max_batch = 32` equals `--max-batch 32`. Turns
the file into flags that stand before those of the command line, so that types, choices and messages
are the flags' own and the command line has the last word. Pure but for reading the file.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
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


class ConfigFileError(ValueError):
    """The file cannot be used; the message names it, the key and the mend."""


Setting = str | int | float | bool


def file_flags(path: str, fields: Sequence[str]) -> list[str]:
    """fields: what may be set. Raises ConfigFileError."""
    return flags_of(file_settings(path, fields))


def flags_of(settings: Mapping[str, Setting]) -> list[str]:
    """As on a command line."""
    flags: list[str] = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if not isinstance(value, bool):
            flags.append(f"{flag}={value}")
        elif value:
            flags.append(flag)
    return flags


def file_settings(path: str, fields: Sequence[str]) -> dict[str, Setting]:
    """By the fields' names. Raises ConfigFileError."""
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(f"config {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"config {path} is not TOML: {error}") from error
    settings: dict[str, Setting] = {}
    for key, value in found.items():
        name = key.replace("-", "_")
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else "known are " + ", ".join(sorted(fields))
            )
            raise ConfigFileError(f"config {path}: unknown key {key}: {hint}")
        if not isinstance(value, str | int | float):
            raise ConfigFileError(
                f"config {path}: {name} must be text, a number or true, not {value!r}"
            )
        settings[name] = value
    return settings
