"""A node's address for a command: finds the node's HTTP port from its gRPC port, or the reverse.
HTTP reports the gRPC port, and gRPC reports the HTTP port.

Imports gRPC only before a gRPC call. Blocks, each wait for at most _SECONDS.

Also builds a command's error when no node answers.
"""

import http.client
import ipaddress
import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from tasuki.utils.options import option

FIX = "give the HOST:PORT of its HTTP or gRPC, as its start shows them, and --ca where it has TLS"


@contextmanager
def asking(target: str) -> Iterator[None]:
    """Convert errors of calls inside `with` to a node without an answer. The raised ClientError
    names the target and the fix, instead of gRPC's text. A node's own rejections pass unchanged.
    target: HOST:PORT."""
    import grpc

    from tasuki.client.errors import ClientError

    try:
        yield
    except ClientError as error:
        # A node's own rejection has a kind.
        if error.status is not grpc.StatusCode.UNAVAILABLE or error.kind is not None:
            raise
        raise ClientError(
            f"nothing at {target} speaks tasuki's gRPC: is a node running there? If so, {FIX}",
            error.status,
            None,
        ) from error


_SECONDS = 5.0
_MOST_READ = 64 << 10
_USUAL = ("127.0.0.1:8000", "127.0.0.1:50051")
"""Default addresses of a node: the HTTP of `tasuki serve`, and the gRPC of every node."""


@dataclass(frozen=True)
class NodeTarget:
    """The settings of a command for reaching a running node."""

    target: str = option(
        "",
        f"HOST:PORT of the node's HTTP or gRPC; not given: {_USUAL[0]}, then {_USUAL[1]}",
        aliases=("--http",),
    )
    ca: str = option("", "PEM file of a CA: connect by TLS and check the node against it")
    api_key: str = option("", "key of the node, if it requires one")

    def grpc_address(self) -> str:
        """Return HOST:PORT of the node's gRPC server. Raises ClientError."""
        return grpc_address(self.target or _usual(), self.ca, self.api_key)

    def http_address(self) -> str:
        """Return HOST:PORT of the node's HTTP server. Raises ClientError."""
        return http_address(self.target or _usual(), self.ca, self.api_key)


def grpc_address(target: str, ca: str, api_key: str) -> str:
    """Return the gRPC address of the node with HTTP or gRPC at `target`, unchanged without HTTP.
    Raises ClientError."""
    answer = _asked(target, ca, api_key)
    if answer is None:
        # The first call shows if the port speaks gRPC.
        return target
    if answer.status in (401, 403):
        _refuse(f"{answer.message or 'the node refuses this key'} (--api-key)")
    known = answer.body.get("grpc")
    if answer.status != 200 or not isinstance(known, str) or not known:
        _refuse(
            f"nothing at {target} speaks tasuki's gRPC or names it: is a node running there? If "
            f"so, {FIX}"
        )
    return _beside(target, known)


def http_address(target: str, ca: str, api_key: str) -> str:
    """Return the HTTP address of the node with HTTP or gRPC at `target`. Raises ClientError, also
    if it has none."""
    if _asked(target, ca, api_key) is not None:
        return target
    known = _http_by_grpc(target, ca, api_key)
    if not known:
        _refuse(
            f"the node at {target} has no HTTP server, which this command asks: start it with "
            "--http-bind HOST:PORT"
        )
    return _beside(target, known)


def answers_http(address: str, ca: str, api_key: str) -> bool:
    """Return True if HTTP is answered at `address`, False otherwise."""
    from tasuki.client.errors import ClientError

    try:
        return _asked(address, ca, api_key) is not None
    except ClientError:
        return False


def _http_by_grpc(target: str, ca: str, api_key: str) -> str:
    """Return HOST:PORT of the node's HTTP server, as reported by its gRPC server at `target`. It is
    empty if the node has no HTTP server. Raises ClientError."""
    import grpc

    from tasuki.client.channel import bearing, open_channel
    from tasuki.client.errors import client_error
    from tasuki.proto import inference_pb2 as pb
    from tasuki.proto import inference_pb2_grpc as pb_grpc
    from tasuki.utils.tls import ClientTls

    with asking(target), open_channel(target, ClientTls(ca) if ca else None) as plain:
        channel = bearing(plain, api_key) if api_key else plain
        admin = pb_grpc.CacheAdminStub(channel)  # type: ignore[no-untyped-call]
        try:
            return str(admin.Stats(pb.StatsRequest(), timeout=_SECONDS).http_address)
        except grpc.RpcError as error:
            raise client_error(error) from error


def _beside(target: str, known: str) -> str:
    """Return HOST:PORT of a node's other server. target: address of the reached server. known:
    address bound by the other server. The result keeps the host of `target` if both are the same
    host, because a certificate may name it."""
    reached, _, _ = target.rpartition(":")
    host, _, port = known.rpartition(":")
    bare = host.strip("[]")
    if _is_unspecified(bare) or bare in _addresses(reached.strip("[]")):
        return f"{reached}:{port}"
    return known


def _is_unspecified(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _addresses(host: str) -> set[str]:
    """Return the host itself and its IP addresses."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return {host}
    return {host, *(str(place[0]) for *_, place in found)}


def _usual() -> str:
    """Return the first of the default addresses with a listening server. Raises ClientError."""
    for place in _USUAL:
        try:
            socket.create_connection(_host_and_port(place), timeout=_SECONDS).close()
        except OSError:
            continue
        return place
    _refuse(f"no node listens at {' or '.join(_USUAL)}: start one, or give --target HOST:PORT")


@dataclass(frozen=True)
class _Answer:
    status: int
    body: dict[str, Any]

    @property
    def message(self) -> str:
        error = self.body.get("error")
        return str(error.get("message", "")) if isinstance(error, dict) else ""


def _asked(target: str, ca: str, api_key: str) -> _Answer | None:
    """Return the answer of the HTTP server at `target`, or None if the server there speaks no HTTP.
    Raises ClientError if no server listens."""
    host, port = _host_and_port(target)
    connection = http.client.HTTPConnection(host, port, timeout=_SECONDS)
    if ca:
        connection = http.client.HTTPSConnection(
            host, port, timeout=_SECONDS, context=_trusting(ca)
        )
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    try:
        connection.request("GET", "/version", headers=headers)
        reply = connection.getresponse()
        content = reply.read(_MOST_READ)
    except ssl.SSLCertVerificationError as error:
        _refuse(f"{target}: {error.verify_message}: give the CA of its certificate with --ca")
    except (ConnectionResetError, BrokenPipeError, TimeoutError, ssl.SSLError):
        return None
    except http.client.HTTPException:
        return None
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        _refuse(f"nothing listens at {target} ({reason}): is a node running there? If so, {FIX}")
    finally:
        connection.close()
    try:
        body = json.loads(content)
    except ValueError:
        body = None
    return _Answer(reply.status, body if isinstance(body, dict) else {})


def _trusting(ca: str) -> ssl.SSLContext:
    """Return a TLS context with trust in the CA's PEM file. Raises ClientError."""
    try:
        return ssl.create_default_context(cafile=ca)
    except OSError as error:
        _refuse(f"--ca {ca} cannot be used ({error.strerror or error}): give a CA's PEM file")


def _host_and_port(target: str) -> tuple[str, int]:
    """Split HOST:PORT into host and port. Raises ClientError."""
    host, _, port = target.rpartition(":")
    if not host or not port.isdecimal() or not 0 < int(port) <= 65535:
        _refuse(f"--target {target!r} is not HOST:PORT: write for example 127.0.0.1:8000")
    return host.strip("[]"), int(port)


def _refuse(message: str) -> NoReturn:
    import grpc

    from tasuki.client.errors import ClientError

    raise ClientError(message, grpc.StatusCode.UNAVAILABLE, None)
