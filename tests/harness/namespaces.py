"""Network namespaces joined by a link, or by a switch. Each acts as a host of its own on the
network.

Owns the namespaces and removes them at its end; changes no interface of its host. Needs root.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

DEVICE = "tasuki0"
"""Name of the link's network interface, in either namespace."""
PREFILL_ADDRESS, DECODE_ADDRESS = "10.231.77.1", "10.231.77.2"
_NEW_NETWORK = 0x40000000


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)


def why_not() -> str | None:
    """Return the reason this machine cannot make namespaces; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None or shutil.which("tc") is None:
        return "iproute2 is not installed"
    try:
        with two_hosts("probe"):
            return None
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"


@contextmanager
def two_hosts(name: str) -> Iterator[tuple[str, str]]:
    """Yield the namespaces of the prefill and the decode node, linked at 200 Mbit/s."""
    stem = f"tasuki-{os.getpid()}-{name}"
    spaces = (f"{stem}-prefill", f"{stem}-decode")
    with _made(spaces):
        _link(spaces[0], DEVICE, spaces[1])
        for space, address in zip(spaces, (PREFILL_ADDRESS, DECODE_ADDRESS), strict=True):
            _bring_up(space, f"{address}/30")
        yield spaces


@contextmanager
def switched_hosts(name: str, count: int) -> Iterator[tuple[str, ...]]:
    """Make `count` namespaces on a switch, another namespace, at 200 Mbit/s each. Their addresses
    are host_address(0), host_address(1) and so on."""
    stem = f"tasuki-{os.getpid()}-{name}"
    switch, spaces = f"{stem}-switch", tuple(f"{stem}-{number}" for number in range(count))
    with _made((switch, *spaces)):
        ip("-n", switch, "link", "add", "switch", "type", "bridge")
        ip("-n", switch, "link", "set", "switch", "up")
        for number, space in enumerate(spaces):
            port = f"port{number}"
            _link(space, port, switch)
            ip("-n", switch, "link", "set", port, "master", "switch", "up")
            _bring_up(space, f"{host_address(number)}/24")
        yield spaces


@contextmanager
def _made(spaces: Sequence[str]) -> Iterator[None]:
    made = []
    try:
        for space in spaces:
            ip("netns", "add", space)
            made.append(space)
        yield
    finally:
        for space in made:
            ip("netns", "delete", space)


def _link(space: str, device: str, other: str) -> None:
    """Link the interface DEVICE of the namespace `space` to the interface `device` of the namespace
    `other`."""
    link = ["link", "add", DEVICE, "netns", space, "type", "veth", "peer"]
    ip(*link, "name", device, "netns", other)


def _bring_up(space: str, address: str) -> None:
    ip("-n", space, "address", "add", address, "dev", DEVICE)
    for device in ("lo", DEVICE):
        ip("-n", space, "link", "set", device, "up")
    _limit(space)


def host_address(number: int) -> str:
    return f"10.231.78.{number + 1}"


def _limit(space: str) -> None:
    limit = ["rate", "200mbit", "burst", "64kb", "latency", "50ms"]
    command = ["tc", "-n", space, "qdisc", "add", "dev", DEVICE, "root", "tbf", *limit]
    subprocess.run(command, check=True, capture_output=True, text=True)


@contextmanager
def inside(space: str) -> Iterator[None]:
    """Move this thread, and the processes it starts, into the namespace while the block runs."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(handle: int) -> None:
        if libc.setns(handle, _NEW_NETWORK) != 0:
            raise OSError(ctypes.get_errno(), f"setns to {space}")

    home = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
    there = os.open(Path("/run/netns") / space, os.O_RDONLY)
    try:
        enter(there)
        yield
    finally:
        enter(home)
        os.close(there)
        os.close(home)
