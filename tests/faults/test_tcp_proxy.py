"""The proxy changes a link as the partition tests assume."""

import socket
import socketserver
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from tests.harness.tcp_proxy import TcpProxy
from tests.harness.waiting import HANG_SECONDS


class Echo(socketserver.BaseRequestHandler):
    """A server that sends back its input."""

    def handle(self) -> None:
        with suppress(ConnectionResetError):
            while piece := self.request.recv(65536):
                self.request.sendall(piece)


@pytest.fixture
def echo() -> Iterator[str]:
    """Yield HOST:PORT."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        host, port = server.server_address
        yield f"{host}:{port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def proxy(echo: str) -> Iterator[TcpProxy]:
    with TcpProxy(echo) as proxy:
        yield proxy


def connected(proxy: TcpProxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=HANG_SECONDS)


def received(end: socket.socket, size: int) -> bytes:
    found = b""
    while len(found) < size:
        piece = end.recv(size - len(found))
        assert piece, "the stream ended"
        found += piece
    return found


def test_every_byte_passes_and_so_does_the_end(proxy: TcpProxy) -> None:
    sent = bytes(range(256)) * 4000
    with connected(proxy) as end:
        threading.Thread(target=end.sendall, args=(sent,)).start()
        assert received(end, len(sent)) == sent
        end.shutdown(socket.SHUT_WR)
        assert end.recv(1) == b""


def test_a_cut_resets_what_stands_and_what_comes_until_healed(proxy: TcpProxy) -> None:
    with connected(proxy) as end:
        end.sendall(b"one")
        assert received(end, 3) == b"one"
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            end.recv(1)
    with pytest.raises(ConnectionResetError), connected(proxy) as end:
        end.recv(1)
    proxy.heal()
    with connected(proxy) as end:
        end.sendall(b"two")
        assert received(end, 3) == b"two"


def test_a_black_hole_shows_no_end_and_delivers_after_heal(proxy: TcpProxy) -> None:
    with connected(proxy) as end:
        end.sendall(b"one")
        assert received(end, 3) == b"one"
        proxy.black_hole()
        end.sendall(b"two")
        end.settimeout(0.3)
        with pytest.raises(TimeoutError):
            end.recv(1)
        with connected(proxy) as late:
            late.settimeout(0.2)
            with pytest.raises(TimeoutError):
                late.recv(1)
        proxy.heal()
        end.settimeout(HANG_SECONDS)
        assert received(end, 3) == b"two"


def test_delay_and_throttle_take_their_time(proxy: TcpProxy) -> None:
    with connected(proxy) as end:
        proxy.delay(0.1)
        begun = time.monotonic()
        end.sendall(b"one")
        assert received(end, 3) == b"one"
        assert time.monotonic() - begun >= 0.2
        proxy.heal()
        proxy.throttle(100_000)
        begun = time.monotonic()
        end.sendall(bytes(50_000))
        received(end, 50_000)
        assert time.monotonic() - begun >= 0.4
