"""A bound on the work over schemas to which references lead again and again. One grammar, one
thread."""

from collections.abc import Mapping
from typing import Any

from tasuki.server.errors import InvalidField

_MOST_REPEATED = 1 << 11
_PARTS = 64
"""Keywords, values and letters that count as one schema more."""


class SchemaVisits:
    """What was looked at before."""

    def __init__(self, field: str) -> None:
        """field: of the request, as errors name it."""
        self._field = field
        # With the schemas, so that no other one takes their ids.
        self._known: dict[int, tuple[Mapping[str, Any], int]] = {}
        self._left = _MOST_REPEATED

    def look_at(self, schema: Mapping[str, Any]) -> None:
        """Raises InvalidField once too many came again."""
        known = self._known.get(id(schema))
        if known is None:
            self._known[id(schema)] = schema, 1 + _parts(schema) // _PARTS
        else:
            self.repeat(known[1])

    def repeat(self, schemas: int) -> None:
        """Count schemas that are looked at again. Raises InvalidField once these are too many."""
        self._left -= schemas
        if self._left < 0:
            raise InvalidField(
                self._field,
                f"cannot be followed: references and branches lead to over {_MOST_REPEATED} "
                "schemas more than once: write fewer of them",
            )


def _parts(schema: Mapping[str, Any]) -> int:
    """Of a schema itself, without those in it."""
    parts = len(schema)
    for value in schema.values():
        if isinstance(value, str | list | Mapping):
            parts += len(value)
        if isinstance(value, list):
            parts += sum(len(item) for item in value if isinstance(item, str))
    return parts
