"""One fetch over https: a host resolved once, its addresses checked, these very ones dialled.

A host's name is resolved once for a call. Every address of the answer must pass the rule.
Redirects, proxies, cookies and reused connections are off, and no header is a caller's. The content
is cut off beyond its bound. The caller bounds the time.
"""

import socket
import ssl
from collections.abc import Callable, Collection

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from .addresses import RefusedAddress, check_global

SEND = "send data:image/png;base64,..."
"""Fix of most refusals."""
_PIECE = 64 << 10
_HEADERS = {"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "tasuki"}
_OK = 200
_REDIRECTS = range(300, 400)

AddressRule = Callable[[str, Collection[str]], None]
"""Raise RefusedAddress for a host and its addresses."""


class TooLarge(ValueError):
    """A content has too many bytes."""


class CheckedResolver(AbstractResolver):
    """A resolver that gives addresses allowed by a rule."""

    def __init__(self, resolve: AbstractResolver, rule: AddressRule) -> None:
        self._resolve = resolve
        self._rule = rule

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        found = await self._resolve.resolve(host, port, family)
        self._rule(host, [one["host"] for one in found])
        return found

    async def close(self) -> None:
        await self._resolve.close()


class PictureGetter:
    def __init__(
        self,
        resolver: AbstractResolver,
        rule: AddressRule = check_global,
        tls: ssl.SSLContext | None = None,
    ) -> None:
        """resolver: asked once a call. rule: refuses addresses. tls: trust; None: the system's
        authorities."""
        self._resolver = CheckedResolver(resolver, rule)
        self._tls = ssl.create_default_context() if tls is None else tls

    async def get(self, url: URL, most_bytes: int) -> bytes:
        """Return the content of an address. Raises RefusedAddress, TooLarge, OSError,
        aiohttp.ClientError."""
        # A connector of its own: no connection serves two callers.
        connector = aiohttp.TCPConnector(
            resolver=self._resolver, use_dns_cache=False, force_close=True, ssl=self._tls
        )
        async with (
            connector,
            aiohttp.ClientSession(
                connector=connector,
                connector_owner=False,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                trust_env=False,
            ) as session,
            session.get(url, headers=_HEADERS, allow_redirects=False) as reply,
        ):
            if reply.status in _REDIRECTS:
                raise RefusedAddress(
                    "is redirected, and no redirect is followed: send the last address"
                )
            if reply.status != _OK:
                raise RefusedAddress(f"is answered with status {reply.status}: {SEND}")
            return await _content(reply, most_bytes)


async def _content(reply: aiohttp.ClientResponse, most_bytes: int) -> bytes:
    """Return the body. Its announced length is believed only if it is too large."""
    if (reply.content_length or 0) > most_bytes:
        raise TooLarge
    found = bytearray()
    async for piece in reply.content.iter_chunked(_PIECE):
        found += piece
        if len(found) > most_bytes:
            raise TooLarge
    return bytes(found)


def https_getter() -> PictureGetter:
    """Return the getter of a running node."""
    return PictureGetter(aiohttp.ThreadedResolver())
