"""Values as JSON knows them. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum, StrEnum
from typing import Any


def to_json(value: Any) -> Any:
    """Data classes become objects, enumerations their names in lower case (those that are
    strings: their strings), the rest itself."""
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, Enum):
        return value.name.lower()
    if is_dataclass(value):
        return {item.name: to_json(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [to_json(item) for item in value]
    return value
