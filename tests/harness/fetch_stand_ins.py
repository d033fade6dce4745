"""A getter of pictures for tests: it dials a local server of pictures instead of the internet.

`local_getter` is a getter source of tasuki.server.pictures.fetching.fetcher. A host named
p<PORT>.<anything> is 127.0.0.1 on that port, with the authority in the folder of the variable HOME.
The rule of addresses is the product's own, except for a host named local.
"""

import asyncio
import os
import signal
import socket
import ssl
from collections.abc import Collection
from pathlib import Path

from aiohttp.abc import AbstractResolver, ResolveResult

from tasuki.server.pictures.fetching.addresses import check_global
from tasuki.server.pictures.fetching.getter import PictureGetter

LOCAL = "tests.harness.fetch_stand_ins:local_getter"
AUTHORITY = "pictures-ca.pem"
ANSWERS = {
    "loopback": ["127.0.0.1"],
    "metadata": ["169.254.169.254"],
    "private": ["10.0.0.8"],
    "mapped": ["::ffff:127.0.0.1"],
    "nat64": ["64:ff9b::7f00:1"],
    "sixtofour": ["2002:7f00:1::1"],
    "scope": ["fe80::1%lo"],
    "mixed": ["93.184.216.34", "127.0.0.1"],
}
"""Addresses of a host, by its name's second part."""


class LocalResolver(AbstractResolver):
    """asked: number of answers. A second answer of a host would be another one."""

    def __init__(self) -> None:
        self.asked = 0

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        self.asked += 1
        first, second, *_ = host.split(".")
        if second == "slow":
            await asyncio.sleep(3600)
        if second == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        addresses = ANSWERS.get(second, ["127.0.0.1"])
        return [
            ResolveResult(
                hostname=host,
                host=address,
                port=int(first.removeprefix("p")),
                family=socket.AF_INET6 if ":" in address else socket.AF_INET,
                proto=0,
                flags=0,
            )
            for address in addresses
        ]

    async def close(self) -> None:
        return


def local_rule(host: str, addresses: Collection[str]) -> None:
    if host.split(".")[1] not in ("local", "killed", "slow"):
        check_global(host, addresses)


def local_getter() -> PictureGetter:
    tls = ssl.create_default_context(cafile=str(Path(os.environ["HOME"]) / AUTHORITY))
    return PictureGetter(LocalResolver(), local_rule, tls)
