"""The prefill nodes that are registered in etcd: a key for each, which ends with its lease.

While etcd does not answer the members stay as they are: it lists nodes, it does not judge their
health, and it never fences a write. Thread rule: the event loop.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing

from .etcd import Entry, Etcd, EtcdError
from .membership import MembershipError, check_target

log = logging.getLogger(__name__)


class EtcdMembership:
    """A node's key is prefix + its name, the value its gRPC address, HOST:PORT."""

    def __init__(
        self, connect: Callable[[], Etcd], prefix: str, retry_seconds: float = 1.0
    ) -> None:
        self._connect = connect
        self._prefix = prefix
        self._retry_seconds = retry_seconds

    async def changes(self) -> AsyncIterator[tuple[str, ...]]:
        """As Membership.changes(). No members until etcd first answers: a node starts without
        it."""
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
    """In the order of their registration. An entry that is no address is logged and left out."""
    members = []
    for entry in sorted(entries, key=lambda entry: (entry.created, entry.key)):
        try:
            members.append(check_target(entry.value, entry.key))
        except MembershipError as error:
            log.warning("not a member: %s", error)
    return tuple(dict.fromkeys(members))
