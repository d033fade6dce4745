"""A daemon's settings in a TOML file: `max_batch = 32` equals `--max-batch 32`.

Turns the file into flags that stand before those of the command line, so that types, choices and
messages are the flags' own and the command line has the last word. Pure but for reading the file.
"""

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path


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
