"""A daemon's settings in a TOML file: `max_batch = 32` says what `--max-batch 32` says.

Turns the file into flags that stand before those of the command line, so that types, choices and
messages are the flags' own and the command line has the last word. Pure but for reading the file.
"""

import difflib
import tomllib
from collections.abc import Sequence
from pathlib import Path


class ConfigFileError(ValueError):
    """The file cannot be used; the message names it, the key and the mend."""


def file_flags(path: str, fields: Sequence[str]) -> list[str]:
    """fields: what may be set. Raises ConfigFileError."""
    try:
        settings = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigFileError(f"config {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigFileError(f"config {path} is not TOML: {error}") from error
    flags: list[str] = []
    for key, value in settings.items():
        name = key.replace("-", "_")
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            hint = (
                f"did you mean {close[0]}?" if close else "known are " + ", ".join(sorted(fields))
            )
            raise ConfigFileError(f"config {path}: unknown key {key}: {hint}")
        flags += _flag(path, name, value)
    return flags


def _flag(path: str, name: str, value: object) -> list[str]:
    flag = "--" + name.replace("_", "-")
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, str | int | float):
        return [f"{flag}={value}"]
    raise ConfigFileError(f"config {path}: {name} must be text, a number or true, not {value!r}")
