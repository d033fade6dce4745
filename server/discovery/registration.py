"""Nodes in etcd: the registration of an address, and the registered prefill nodes.

Registration: an address of a node, listed in etcd from start() to stop(). Owns one lease. Thread
rule: the event loop. A prefill node removes its entry for hand-overs before it drains, so no prompt
is sent to a node that rejects it.

EtcdMembership: the prefill nodes registered in etcd. Each has a key bound to its lease. While etcd
does not answer, the members stay unchanged. It lists nodes, but does not check their health, and
never fences a node's writes. Thread rule: the event loop.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from contextlib import aclosing

from tasuki.utils.signatures import Work

from .etcd import Entry, Etcd, EtcdError
from .etcd_access import HTTP_PREFIX, EtcdAccess
from .membership import MembershipError, check_target

log = logging.getLogger(__name__)

LEASE_SECONDS = 5
_RENEWALS_A_LEASE = 4


class Registration:
    def __init__(self, etcd: Etcd, key: str, address: str) -> None:
        """Set up a registration. key: the entry's key in etcd. address: HOST:PORT of this node for
        other nodes, the entry's value."""
        self._etcd = etcd
        self._key = key
        self._address = address
        self._lease: int | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register the address without a wait, and again whenever the lease has ended or etcd was
        unreachable."""
        self._keeping = asyncio.get_running_loop().create_task(self._keep(), name="registration")

    async def stop(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        if self._lease is not None:
            try:
                await self._etcd.revoke(self._lease)
            except EtcdError as error:
                log.warning("the entry %s ends with its lease: %s", self._key, error)
        await self._etcd.close()

    async def _keep(self) -> None:
        silent = False
        while True:
            try:
                if self._lease is None:
                    self._lease = await self._etcd.grant(LEASE_SECONDS)
                    await self._etcd.put(self._key, self._address, self._lease)
                    log.info("registered as %s", self._key)
                else:
                    await self._etcd.renew(self._lease)
                silent = False
            except EtcdError as error:
                self._lease = None
                if not silent:
                    log.warning("not registered: %s", error)
                silent = True
            await asyncio.sleep(LEASE_SECONDS / _RENEWALS_A_LEASE)


def http_registration(access: EtcdAccess, endpoint: str, address: str) -> Registration:
    """Return a registration for an HTTP server. endpoint: etcd's URL. address: HOST:PORT of the
    server, for others. REQUIRES: a running event loop. Raises EtcdAccessError."""
    return Registration(Etcd(endpoint, access), HTTP_PREFIX + address, address)


class EtcdMembership:
    """The prefill nodes registered in etcd. A node's key is the prefix and its name. The value is
    its gRPC address, HOST:PORT."""

    def __init__(self, connect: Work[Etcd], prefix: str, retry_seconds: float = 1.0) -> None:
        self._connect = connect
        self._prefix = prefix
        self._retry_seconds = retry_seconds

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """Yield the addresses of the registered nodes, as Membership.changes(). Before etcd's first
        answer there are none, so a node starts without etcd."""
        etcd = self._connect()
        known: tuple[str, ...] | None = None
        silent = False
        try:
            while True:
                try:
                    snapshot = await etcd.range(self._prefix)
                    silent = False
                    members = _members(snapshot.entries)
                    if members != known:
                        known = members
                        yield members
                    async with aclosing(etcd.changed(self._prefix, snapshot.revision)) as changes:
                        await anext(changes)
                except EtcdError as error:
                    if not silent:
                        log.warning("members stay as they are: %s", error)
                    silent = True
                    if known is None:
                        known = ()
                        yield known
                    await asyncio.sleep(self._retry_seconds)
        finally:
            await etcd.close()


def _members(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    """Return the nodes' addresses in the order of registration. An entry without a valid address is
    logged and left out."""
    members = []
    for entry in sorted(entries, key=lambda entry: (entry.created, entry.key)):
        try:
            members.append(check_target(entry.value, entry.key))
        except MembershipError as error:
            log.warning("not a member: %s", error)
    return tuple(dict.fromkeys(members))
