"""Callers, and the scopes of their keys.

Has no part in keys themselves or transports. Pure.
"""

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """A right that a key has. No scope includes another: a key lists every one it has."""

    CALLER = "caller"
    """Prompts, sessions, own requests."""
    METRICS = "metrics"
    """Numbers about all requests, and no content: /metrics."""
    GATEWAY = "gateway"
    """The gateway's engine protocol; a call may name its tenant."""
    OPERATOR = "operator"
    """The node itself: its cache, its role, its drain, and every caller's requests."""


EVERY_SCOPE = frozenset(Scope)


@dataclass(frozen=True)
class Caller:
    """name: may be logged. tenant: its prompts share cached prefixes among themselves; None: they
    share with all other callers without a tenant."""

    name: str
    scopes: frozenset[Scope] = frozenset({Scope.CALLER})
    tenant: str | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def is_one_of_many(self) -> bool:
        """Whether it has one key of a file, so that its use takes from other callers."""
        return self.name not in RESERVED_NAMES


ANYBODY = Caller("anybody", EVERY_SCOPE)
"""Every caller of a node without keys, which only loopback serves."""

NOBODY = Caller("nobody", frozenset())
"""A caller without a key, on a node with keys: it may use what is open to all."""

CERTIFIED = Caller("certified", frozenset({Scope.CALLER, Scope.METRICS, Scope.GATEWAY}))
"""Every caller of a node without keys off loopback: a certificate admits it and names nobody."""

OWNER = Caller("default", EVERY_SCOPE)
"""The caller with the key of --api-key."""

RESERVED_NAMES = frozenset(caller.name for caller in (ANYBODY, NOBODY, CERTIFIED, OWNER))
"""No key of a file may be called so."""
