"""Who calls, by the API key that they bear: names for keys, and what a file of them looks like.

Owns the keys, which never leave it: not by repr, not by a log, not by an error. Knows no transport.
Pure but for reading the file.
"""

import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import NewType

Caller = NewType("Caller", str)
"""A name that may be logged."""

ANYBODY = Caller("anybody")
"""Calls where no key is asked for."""


class ApiKeyError(ValueError):
    """The file of keys cannot be used; the message names the line and the mend, never a key."""


class ApiKeys:
    def __init__(self, keys: Mapping[str, str]) -> None:
        """keys: by the caller's name."""
        self._bearers = {Caller(name): f"Bearer {key}".encode() for name, key in keys.items()}

    @staticmethod
    def load(path: Path) -> "ApiKeys":
        """A line has a name and a key, `#` begins a comment. Raises ApiKeyError."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiKeyError(f"api_keys {path} cannot be read: {error}") from error
        keys: dict[str, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            if len(words) != 2:
                raise ApiKeyError(f"api_keys {path}:{number}: write a name and a key")
            name, key = words
            if name in keys:
                raise ApiKeyError(f"api_keys {path}:{number}: {name} has a key already")
            if key in keys.values():
                raise ApiKeyError(f"api_keys {path}:{number}: {name}'s key is another's too")
            keys[name] = key
        if not keys:
            raise ApiKeyError(f"api_keys {path} has none: leave the setting out, or add a line")
        return ApiKeys(keys)

    def __bool__(self) -> bool:
        return bool(self._bearers)

    def joined(self, other: "ApiKeys") -> "ApiKeys":
        both = ApiKeys({})
        both._bearers = {**self._bearers, **other._bearers}
        return both

    def caller(self, authorization: str | bytes | None) -> Caller | None:
        """Who bears that header's key; None where nobody does, ANYBODY where there are no keys.
        Takes as long whichever key matches."""
        if not self._bearers:
            return ANYBODY
        given = authorization or b""
        if isinstance(given, str):
            given = given.encode(errors="surrogateescape")
        found = None
        for name, wanted in self._bearers.items():
            if hmac.compare_digest(given, wanted):
                found = name
        return found


NO_KEYS = ApiKeys({})
