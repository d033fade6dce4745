"""An address of a node in etcd, which is listed there as long as it is of use.

Owns one lease. Thread rule: the event loop. Of a prefill node's hand-over the entry is removed
before the node drains, so that no prompt is sent to a node that refuses.
"""

import asyncio
import contextlib
import logging

from .etcd import Etcd, EtcdError

log = logging.getLogger(__name__)

LEASE_SECONDS = 5
_RENEWALS_A_LEASE = 4


class Registration:
    def __init__(self, etcd: Etcd, key: str, address: str) -> None:
        """address: HOST:PORT under which others reach this node."""
        self._etcd = etcd
        self._key = key
        self._address = address
        self._lease: int | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Register, and again whenever the lease has ended; returns at once."""
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
