"""Settings of a program: the fields of a configuration, and a TOML file of their values.

option(): one field of a configuration, with the help text, choices and bounds of its flag.

`Auto`: a setting computed by the program at its start.

file_settings(): a daemon's settings in a TOML file: `max_batch = 32` equals `--max-batch 32`. The
file's settings become flags, placed before those of the command line. So types, choices and
messages are the flags' own, and the command line wins. Pure except for reading the file.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import field
from enum import StrEnum
from pathlib import Path
from typing import Any

Headings = Mapping[str, tuple[str, ...]]
"""Headings of --help-all, each with the names of its fields. A config may have them as its
HEADINGS."""

MostAsked = Mapping[str, str]
"""Names of the fields shown in --help, each with one line of text. A config may have them as its
MOST_ASKED; --help-all shows all other fields."""


LONGEST_SECONDS = 1e8
"""Largest timeout of a setting without an end: three years, in seconds. The system's calls accept
no time far beyond."""


def option(
    default: Any,
    text: str,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
    argument: str | None = None,
    unit: str | None = None,
) -> Any:
    """Return a dataclass field for a command-line flag. text: help text. aliases: spellings of
    other engines. argument: the name in --help of a value given without its flag; None: a value
    needs its flag. unit: the placeholder in --help, if the field's name does not end with a
    unit."""
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
    """The value "auto" of a config's field of type `int | Auto`. It is written so on a command line
    and in a file."""

    AUTO = "auto"


class ConfigFileError(ValueError):
    """The settings file cannot be used. The message names the file, the key and the fix."""


Setting = str | int | float | bool


def file_flags(path: str, fields: Sequence[str]) -> list[str]:
    """Return the settings in a TOML file as command-line flags. fields: allowed settings. Raises
    ConfigFileError."""
    return flags_of(file_settings(path, fields))


def flags_of(settings: Mapping[str, Setting]) -> list[str]:
    """Return settings as a list of command-line flags. A false setting gives no flag."""
    flags: list[str] = []
    for name, value in settings.items():
        flag = "--" + name.replace("_", "-")
        if not isinstance(value, bool):
            flags.append(f"{flag}={value}")
        elif value:
            flags.append(flag)
    return flags


def file_settings(path: str, fields: Sequence[str]) -> dict[str, Setting]:
    """Return the settings in a TOML file, by the fields' names. fields: allowed settings. Raises
    ConfigFileError."""
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
