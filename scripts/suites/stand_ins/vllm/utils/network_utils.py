"""Free network ports, with the interface used by vLLM's tests."""

import socket


def get_open_port() -> int:
    """Return a loopback port unused at this moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
