"""Who calls, and what their key lets them do.

Knows no keys and no transports. Pure.
"""

from dataclasses import dataclass
from enum import Enum


class Scope(Enum):
    """What a key is good for. None of them holds another: a key lists all that it has."""

    CALLER = "caller"
    """Prompts, sessions, own requests."""
    METRICS = "metrics"
    """Numbers about all requests, and no content: /metrics."""
    GATEWAY = "gateway"
    """The gateway's engine protocol; may name the tenant that it asks for."""
    OPERATOR = "operator"
    """The node itself: its cache, its role, its end, and what others asked."""


EVERY_SCOPE = frozenset(Scope)


@dataclass(frozen=True)
class Caller:
    """name: may be logged. tenant: whose prompts may share cached prefixes with the caller's own;
    None: those of everybody who has none either."""

    name: str
    scopes: frozenset[Scope] = frozenset({Scope.CALLER})
    tenant: str | None = None

    def may(self, scope: Scope) -> bool:
        return scope in self.scopes

    @property
    def is_one_of_many(self) -> bool:
        """One key of a file of them, so that what it holds is held from others."""
        return self.name not in RESERVED_NAMES


ANYBODY = Caller("anybody", EVERY_SCOPE)
"""Calls where no key is asked for, which only loopback serves."""

NOBODY = Caller("nobody", frozenset())
"""Calls without a key of what is open to all, where keys are asked for."""

CERTIFIED = Caller("certified", frozenset({Scope.CALLER, Scope.METRICS, Scope.GATEWAY}))
"""Calls where no key is asked for off loopback: a certificate let them in and names nobody."""

OWNER = Caller("default", EVERY_SCOPE)
"""Who bears the one key of --api-key."""

RESERVED_NAMES = frozenset(caller.name for caller in (ANYBODY, NOBODY, CERTIFIED, OWNER))
"""No key of a file may be called so."""
