"""A node's dashboard streams, from its HTTP port: JSON values as they come.

Reads server-sent events and sends the key; values stay JSON. One thread; reading blocks.
"""

import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import grpc

from tasuki.client.errors import ClientError
from tasuki.utils.config.options import option

_CONNECT_SECONDS = 10.0
_MOST_READ = 64 << 10


@dataclass(frozen=True)
class HttpTarget:
    http: str = option("127.0.0.1:8000", "HOST:PORT of the node's HTTP server (--http-bind)")
    ca: str = option("", "PEM file of a CA: connect by TLS and check the node against it")
    api_key: str = option("", "the node's key, where it requires one")

    def values(self, path: str) -> Iterator[dict[str, Any]]:
        """Of the stream at `path`, as /debug/stream, until it ends. Raises ClientError."""
        scheme = "https" if self.ca else "http"
        trust = ssl.create_default_context(cafile=self.ca) if self.ca else None
        request = urllib.request.Request(f"{scheme}://{self.http}{path}")
        if self.api_key:
            request.add_header("Authorization", f"Bearer {self.api_key}")
        try:
            with urllib.request.urlopen(request, timeout=_CONNECT_SECONDS, context=trust) as reply:
                for line in reply:
                    if line.startswith(b"data: "):
                        yield json.loads(line[6:])
        except (OSError, http.client.HTTPException) as error:
            if refusal := _refusal(error):
                raise ClientError(refusal, grpc.StatusCode.PERMISSION_DENIED, None) from error
            raise ClientError(
                f"http {self.http}: {_cause(error)}: is a node running there? Give the HOST:PORT "
                "that it announced as http",
                grpc.StatusCode.UNAVAILABLE,
                None,
            ) from error


def _refusal(error: Exception) -> str:
    """A node's own words; empty where no node refused."""
    if not isinstance(error, urllib.error.HTTPError):
        return ""
    try:
        said = str(json.loads(error.read(_MOST_READ))["error"]["message"])
    except (OSError, http.client.HTTPException, ValueError, LookupError, TypeError):
        return ""
    return f"{said} (--api-key)" if error.code in (401, 403) else said


def _cause(error: Exception) -> str:
    """In words; what came in place of HTTP may hold any bytes."""
    if isinstance(error, http.client.HTTPException):
        return "what answers is no HTTP"
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, OSError) and reason.strerror:
        return reason.strerror.lower()
    return str(error)
