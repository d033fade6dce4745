"""Tenants, whose prompts share cached prefixes with nobody else's, and the salts that keep them
apart.

Uses keys' names and scopes, never keys; has no part in transports or the tree. Pure.

A prompt's salt is made of the tenant's name and the client's own salt:

    no tenant    the client's salt as it stands; empty where it gave none
    a tenant     MARK + SHA-256("tasuki tenant v1" + length of name + name + client's salt)

Invariants: two pairs of name and client's salt have two salts, since the length (4 bytes, highest
first) fixes where the name ends and no client's salt may begin with MARK; so no client reaches
another tenant's prompts by a choice of its salt. The same pair has the same salt on every node, so
that a prefill node keeps apart what its decode nodes do. A name is no secret: a tenant's salt keeps
prompts apart, it does not hide the names of prefixes from who may watch them (docs/security.md).
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.server.errors import InvalidField, PermissionDenied

from .caller import Caller, Scope

TENANT_KEY = "x-tasuki-tenant"
"""In HTTP headers and in gRPC metadata."""

EVERY_TENANT = "*"
"""What a watcher of blocks may name in a tenant's place."""

MAX_SALT = 256

_DOMAIN = b"tasuki tenant v1"
_MARK = b"\0tasuki tenant\0"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@-]{0,63}")


@dataclass(frozen=True)
class WatchScope:
    """The prompts whose blocks a watcher sees. tenant: of the watcher's own prompts. others:
    whether it sees every other tenant's blocks too."""

    caller: Caller
    tenant: str | None
    others: bool


def tenant_of(caller: Caller, named: Sequence[str]) -> str | None:
    """The tenant of a call's prompts; None: they share cached prefixes with all other calls without
    a tenant. named: the values of TENANT_KEY. Raises PermissionDenied, InvalidField."""
    if not named:
        return caller.tenant
    _check_may_name(caller)
    (name, *more) = named
    if more or not _NAME.fullmatch(name):
        raise InvalidField(
            TENANT_KEY,
            "must be one name of 1 to 64 letters, digits and ._:@- that begins with a letter or a "
            "digit",
        )
    return name


def watch_scope(caller: Caller, named: Sequence[str]) -> WatchScope:
    """What a subscriber sees. named: as in tenant_of(), or EVERY_TENANT alone. Raises
    PermissionDenied, InvalidField."""
    if list(named) != [EVERY_TENANT]:
        return WatchScope(caller, tenant_of(caller, named), others=False)
    _check_may_name(caller)
    return WatchScope(caller, caller.tenant, others=True)


def salt_of(tenant: str | None, cache_salt: bytes) -> bytes:
    """The salt of a prompt in the engine. cache_salt: the client's own. Raises InvalidField."""
    if len(cache_salt) > MAX_SALT:
        raise InvalidField("cache_salt", f"has {len(cache_salt)} bytes: send at most {MAX_SALT}")
    if tenant is None:
        if cache_salt.startswith(_MARK):
            raise InvalidField("cache_salt", "begins as a tenant's does: choose another")
        return cache_salt
    name = tenant.encode()
    content = _DOMAIN + len(name).to_bytes(4, "big") + name + cache_salt
    return _MARK + hashlib.sha256(content).digest()


def _check_may_name(caller: Caller) -> None:
    if not (caller.may(Scope.GATEWAY) or caller.may(Scope.OPERATOR)):
        raise PermissionDenied(
            f"{TENANT_KEY} is for keys of the scope gateway or operator, and {caller.name}'s has "
            "neither: leave it out"
        )
