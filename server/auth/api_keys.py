"""API keys: the file of keys, and the caller of each key.

Owns the keys, which never leave it: not by repr, not by a log, not by an error. Pure but for
reading the file.
"""

import hmac
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .caller import ANYBODY, RESERVED_NAMES, Caller, Scope


class ApiKeyError(ValueError):
    """The file of keys cannot be used; the message names the line and the mend, never a key."""


class ApiKeys:
    def __init__(self, keys: Mapping[Caller, str], keyless: Caller = ANYBODY) -> None:
        """keyless: the caller of every call where there are no keys."""
        self._keyless = keyless
        self._keys = keys
        self._bearers = {caller: f"Bearer {key}".encode() for caller, key in keys.items()}

    @staticmethod
    def load(path: Path) -> "ApiKeys":
        """A line has a name, a key and, separated by commas, the key's scopes; none: caller. `#`
        begins a comment. Each is a tenant of its own. Raises ApiKeyError."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise ApiKeyError(f"api_keys {path} cannot be read: {error}") from error
        keys: dict[Caller, str] = {}
        for number, line in enumerate(lines, 1):
            words = line.partition("#")[0].split()
            if not words:
                continue
            place = f"api_keys {path}:{number}"
            if len(words) not in (2, 3):
                raise ApiKeyError(f"{place}: write a name and a key, and scopes behind them")
            name, key = words[:2]
            if name in RESERVED_NAMES:
                raise ApiKeyError(f"{place}: the name {name} is taken: choose another")
            if name in (caller.name for caller in keys):
                raise ApiKeyError(f"{place}: {name} has a key already")
            if key in keys.values():
                raise ApiKeyError(f"{place}: {name}'s key is another's too")
            keys[_caller(place, name, words[2:])] = key
        if not keys:
            raise ApiKeyError(f"api_keys {path} has none: leave the setting out, or add a line")
        return ApiKeys(keys)

    def __bool__(self) -> bool:
        return bool(self._bearers)

    def joined(self, other: "ApiKeys") -> "ApiKeys":
        return ApiKeys({**self._keys, **other._keys}, self._keyless)

    def sharing(self) -> "ApiKeys":
        """The same keys, whose bearers share cached prefixes."""
        shared = {replace(caller, tenant=None): key for caller, key in self._keys.items()}
        return ApiKeys(shared, self._keyless)

    def caller(self, authorization: Sequence[str | bytes]) -> Caller | None:
        """The caller of the one authorization header; None where its key is unknown, or where there
        is not exactly one header. Takes the same time whichever key matches."""
        if not self._bearers:
            return self._keyless
        if len(authorization) != 1:
            return None
        (given,) = authorization
        if isinstance(given, str):
            given = given.encode(errors="surrogateescape")
        found = None
        for caller, wanted in self._bearers.items():
            if hmac.compare_digest(given, wanted):
                found = caller
        return found


def _caller(place: str, name: str, scopes: list[str]) -> Caller:
    """Raises ApiKeyError."""
    if not scopes:
        return Caller(name, tenant=name)
    try:
        return Caller(name, frozenset(map(Scope, scopes[0].split(","))), name)
    except ValueError as error:
        known = ",".join(scope.value for scope in Scope)
        raise ApiKeyError(f"{place}: {name}'s scopes must be some of {known}") from error


NO_KEYS = ApiKeys({})
