"""One field of a configuration, with the text, choices and bounds that its flag shows."""

from dataclasses import field
from typing import Any


def option(
    default: Any,
    text: str,
    choices: tuple[str, ...] | None = None,
    aliases: tuple[str, ...] = (),
) -> Any:
    """A dataclass field that is also a command-line flag. aliases: how other engines spell it."""
    metadata: dict[str, Any] = {"help": text, "aliases": aliases}
    if choices is not None:
        metadata["choices"] = choices
    return field(default=default, metadata=metadata)
