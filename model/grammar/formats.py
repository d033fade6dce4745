"""The formats of a schema's strings: the held ones, and the names of the others.

Pure functions. Every other format is an annotation, as in JSON Schema.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

FORMATS = frozenset(
    (
        *("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"),
        "uri",
    )
)
"""Held in JSON."""
MOST_IGNORED = 16
"""Names of one grammar; further ones are left out."""
ODD = "?"
_PLAIN = re.compile(r"[!-+\-.0-~/]{1,64}")
"""Printable ASCII without white space and the comma that stands between names."""
# Keywords without schemas in their values, and keywords of schemas by name.
_VALUES = frozenset({"const", "enum", "default", "examples", "example", "required", "type"})
_NAMED_SCHEMAS = frozenset(
    {"properties", "patternProperties", "dependentSchemas", "$defs", "definitions"}
)


def ignored_formats(schema: Any) -> tuple[str, ...]:
    """Return the names of other formats in a caller's schema: each once, in its order, at most
    MOST_IGNORED. ODD stands for a long name and for one with odd letters, so that a header may hold
    them all. Linear in the schema."""
    found: dict[str, None] = {}
    left = [schema]
    while left and len(found) < MOST_IGNORED:
        item = left.pop()
        if isinstance(item, list):
            left += reversed(item)
        elif isinstance(item, Mapping):
            name = item.get("format")
            if isinstance(name, str) and name not in FORMATS:
                found[name if _PLAIN.fullmatch(name) else ODD] = None
            left += reversed([each for key, value in item.items() for each in _in(key, value)])
    return tuple(found)


def _in(keyword: str, value: Any) -> Iterable[Any]:
    """Return the schemas that a keyword's value is, or holds."""
    if keyword in _NAMED_SCHEMAS and isinstance(value, Mapping):
        return value.values()
    return () if keyword in _VALUES else (value,)
