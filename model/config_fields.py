"""Typed access to the fields of a config.json, each failure naming the file, the field, the mend.

Immutable, so free to share between threads.
"""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_MOST = sys.float_info.max


class ModelConfigError(ValueError):
    """A config.json that cannot be served; the message names the file, the field and the mend."""


@dataclass(frozen=True)
class ConfigFields:
    """An object of a config.json. source: the file; within: what its fields' names begin with."""

    values: Mapping[str, Any]
    source: str
    within: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.values

    def get(self, name: str, default: object = None) -> Any:
        return self.values.get(name, default)

    def size(self, name: str, default: int | None = None) -> int:
        """A positive integer. Raises ModelConfigError."""
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing", "copy it from the published config")
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.error(name, f"is {value!r}", "use a positive integer")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """Positive and finite. Raises ModelConfigError."""
        value = self.get(name, default)
        if value is None:
            raise self.error(name, "is missing", "copy it from the published config")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= _MOST:
            raise self.error(name, f"is {value!r:.40}", "use a positive, finite number")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        """Raises ModelConfigError where it is anything but true, false or null."""
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"is {value!r:.40}", "use true or false")
        return default if value is None else value

    def require(self, name: str, only: object) -> None:
        """Raises ModelConfigError where the field is there and is anything else."""
        value = self.get(name, only)
        if value != only:
            raise self.error(name, f"is {value!r}", f"only {only!r} is supported")

    def object(self, name: str) -> "ConfigFields | None":
        """The object of that name; None where it is absent, null or empty. Raises
        ModelConfigError."""
        value = self.get(name)
        if value is None or value == {}:
            return None
        if not isinstance(value, dict):
            raise self.error(name, "is not an object", "copy the published one")
        return ConfigFields(value, self.source, f"{self.within}{name}.")

    def error(self, name: str, what: str, mend: str) -> ModelConfigError:
        return ModelConfigError(f"{self.source}: {self.within}{name} {what}; {mend}")
