"""Whose prompts may share cached prefixes: the tenant of a call, and the salt that its prompts get.

Knows keys' names and scopes, never keys; knows no transport and no tree. Pure.

A prompt's salt is made of the tenant's name and the client's own salt:

    no tenant    the client's salt as it stands; empty where it gave none
    a tenant     MARK + SHA-256("tasuki tenant v1" + length of name + name + client's salt)

Invariants: two pairs of name and client's salt have two salts, since the length (4 bytes, highest
first) says where the name ends and no client's salt may begin with MARK; so no client reaches
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
    """Whose blocks a caller is told of. tenant: its own prompts'. others: everybody else's too."""

    caller: Caller
    tenant: str | None
    others: bool


def tenant_of(caller: Caller, named: Sequence[str]) -> str | None:
    """The tenant that a call's prompts are; None: of nobody in particular, shared by all such
    calls. named: the values of TENANT_KEY. Raises PermissionDenied, InvalidField."""
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
    """As tenant_of()."""
    if list(named) != [EVERY_TENANT]:
        return WatchScope(caller, tenant_of(caller, named), others=False)
    _check_may_name(caller)
    return WatchScope(caller, caller.tenant, others=True)


def salt_of(tenant: str | None, cache_salt: bytes) -> bytes:
    """What the engine is given as a prompt's salt. cache_salt: the client's own. Raises
    InvalidField."""
    if len(cache_salt) > MAX_SALT:
        raise InvalidField("cache_salt", f"has {len(cache_salt)} bytes: send at most {MAX_SALT}")
    if tenant is None:
        if cache_salt.startswith(_MARK):
            raise InvalidField("cache_salt", "begins as a tenant's does: choose another")
        return cache_salt
    name = tenant.encode()
    told = _DOMAIN + len(name).to_bytes(4, "big") + name + cache_salt
    return _MARK + hashlib.sha256(told).digest()


def _check_may_name(caller: Caller) -> None:
    if not (caller.may(Scope.GATEWAY) or caller.may(Scope.OPERATOR)):
        raise PermissionDenied(
            f"{TENANT_KEY} is for keys of the scope gateway or operator, and {caller.name}'s has "
            "neither: leave it out"
        )
