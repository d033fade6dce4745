"""A client for the part of etcd needed by membership: keys under leases, ranges and watches.

Uses etcd's own HTTP gateway (/v3/..., JSON with base64 keys), because no maintained Python client
of its gRPC exists. One event loop's thread.
"""

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import aiohttp

from .etcd_access import NO_LOGIN, EtcdAccess

_SECONDS = 5.0
_UNAUTHENTICATED = 16
"""gRPC's code for an expired token, passed on by the gateway."""


class EtcdError(ConnectionError):
    """etcd cannot be reached or rejected a call. The message has the endpoint and its reply."""


@dataclass(frozen=True)
class Entry:
    """One key of etcd with its value. created: revision of the store at the key's creation. A key
    created again has another revision."""

    key: str
    value: str
    created: int


@dataclass(frozen=True)
class Snapshot:
    """All entries under a prefix, at `revision` of the etcd store."""

    entries: tuple[Entry, ...]
    revision: int


class Etcd:
    """A client of etcd. endpoint: URL, for example http://127.0.0.1:2379. Close it. REQUIRES: a
    running event loop."""

    def __init__(
        self,
        endpoint: str,
        access: EtcdAccess = NO_LOGIN,
    ) -> None:
        """Set up a client. access: this node's login, and the authority for etcd's certificate.
        Raises EtcdAccessError if the password would go in plain text."""
        access.check(endpoint)
        self._endpoint = endpoint.rstrip("/")
        self._login = access.login
        self._token: str | None = None
        connector = aiohttp.TCPConnector(ssl=True if access.tls is None else access.tls)
        self._session = aiohttp.ClientSession(connector=connector)

    async def grant(self, seconds: int) -> int:
        """Create a new lease and return its id. It ends `seconds` after its last renewal."""
        return int((await self._ask("lease/grant", {"TTL": seconds}))["ID"])

    async def renew(self, lease: int) -> None:
        """Renew the lease. Raises EtcdError, also if the lease has ended."""
        reply = await self._ask("lease/keepalive", {"ID": lease})
        if int(reply.get("result", reply).get("TTL", 0)) <= 0:
            raise EtcdError(f"etcd at {self._endpoint}: lease {lease} has ended")

    async def revoke(self, lease: int) -> None:
        """End the lease now. Its keys are deleted with it. Raises EtcdError."""
        await self._ask("lease/revoke", {"ID": lease})

    async def put(self, key: str, value: str, lease: int) -> None:
        await self._ask("kv/put", {"key": _encode(key), "value": _encode(value), "lease": lease})

    async def range(self, prefix: str) -> Snapshot:
        reply = await self._ask("kv/range", _prefix_range(prefix))
        entries = [
            Entry(_decode(kv["key"]), _decode(kv["value"]), int(kv["create_revision"]))
            for kv in reply.get("kvs", ())
        ]
        return Snapshot(tuple(entries), int(reply["header"]["revision"]))

    async def changed(self, prefix: str, after: int) -> AsyncGenerator[None, None]:
        """Yield once for each message of changes under the prefix after the store's revision
        `after`. Raises EtcdError, also at the watch's end."""
        create = {**_prefix_range(prefix), "start_revision": after + 1}
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_SECONDS)
        headers = await self._headers()
        try:
            async with self._session.post(
                f"{self._endpoint}/v3/watch",
                json={"create_request": create},
                headers=headers,
                timeout=timeout,
            ) as response:
                async for line in response.content:
                    result = json.loads(line).get("result", {})
                    if result.get("events"):
                        yield
                    # The stream itself would stay open without any message.
                    if result.get("canceled"):
                        self._token = None
                        reason = result.get("cancel_reason", "")
                        raise EtcdError(f"etcd at {self._endpoint} refused a watch: {reason}")
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._error(error) from error
        raise EtcdError(f"etcd at {self._endpoint} ended a watch")

    async def close(self) -> None:
        await self._session.close()

    async def _ask(self, method: str, body: dict[str, Any]) -> dict[str, Any]:
        had_token = self._token is not None
        status, reply = await self._post(method, body, await self._headers())
        if had_token and isinstance(reply, dict) and reply.get("code") == _UNAUTHENTICATED:
            self._token = None
            status, reply = await self._post(method, body, await self._headers())
        if status != 200 or not isinstance(reply, dict):
            raise EtcdError(f"etcd at {self._endpoint} refused {method}: {reply}")
        return reply

    async def _headers(self) -> dict[str, str]:
        """Return the HTTP headers, with a token of the login if there is one."""
        if self._login is None:
            return {}
        if self._token is None:
            asked = {"name": self._login.name, "password": self._login.password}
            status, reply = await self._post("auth/authenticate", asked, {})
            if status != 200 or not isinstance(reply, dict) or "token" not in reply:
                raise EtcdError(
                    f"etcd at {self._endpoint} refused the user {self._login.name}: check "
                    f"etcd_login ({reply})"
                )
            self._token = str(reply["token"])
        return {"Authorization": self._token}

    async def _post(
        self, method: str, body: dict[str, Any], headers: dict[str, str]
    ) -> tuple[int, Any]:
        """Call a method of etcd's gateway. Return the HTTP status, and the reply as JSON. Raises
        EtcdError."""
        url = f"{self._endpoint}/v3/{method}"
        try:
            async with (
                asyncio.timeout(_SECONDS),
                self._session.post(url, json=body, headers=headers) as response,
            ):
                return response.status, await response.json(content_type=None)
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise self._error(error) from error

    def _error(self, error: Exception) -> EtcdError:
        return EtcdError(f"etcd at {self._endpoint} does not answer: {error!r}")


def _prefix_range(prefix: str) -> dict[str, str]:
    end = prefix[:-1] + chr(ord(prefix[-1]) + 1)
    return {"key": _encode(prefix), "range_end": _encode(end)}


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode()
