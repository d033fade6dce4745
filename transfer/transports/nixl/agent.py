"""NIXL's agent: its environment, its libraries, and the time limit of its retries. Imports no
torch."""

import ctypes
import importlib
import importlib.util
import os
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from tasuki.transfer.errors import TransportError

_PACKAGES = ("nixl_cu13", "nixl_cu12")

ENVIRONMENT = {
    # No shared memory and no cma by default (NIXL 1.5.1). With posix a receiver segfaults inside
    # UCX if its peer is killed while the two connect. With sysv connecting was seen to hang. With
    # cma a sender aborts on close after its peer was killed in mid-transfer. tcp is slower on one
    # host, but survives all of these, and sees a peer's death at once.
    "UCX_TLS": "cuda_copy,cuda_ipc,rc,tcp,self",
    # UCX authenticates no peer: a user setting another interface declares it as trusted.
    "UCX_NET_DEVICES": "lo",
    # For users adding posix or sysv: without these two, agents on one host cannot be made.
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    # With UCX's defaults (1 s, 7) a NIC repeats a write for half a minute, and the fence waits as
    # long.
    "UCX_RC_TIMEOUT": "20ms",
    "UCX_RC_RETRY_COUNT": "7",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "error",
    "NIXL_LOG_LEVEL": "ERROR",
}


def configure_environment() -> dict[str, str]:
    """Set UCX's environment variables, read once at NIXL's import; values set by the user stay.
    Return the effective values."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return {name: os.environ[name] for name in ENVIRONMENT}


def installed_package() -> str | None:
    """Return the package name of the NIXL wheel importable here; None if there is none."""
    return next((name for name in _PACKAGES if importlib.util.find_spec(name)), None)


def new_agent(name: str) -> Any:
    """Return a NIXL agent over UCX, made in the same way in every process here.

    Knows UCX's environment variables. Imports no torch, because the probe process for metadata has
    none. Invariant: the user's variables stay. Raises TransportError if NIXL is not installed or
    its UCX cannot start.
    """
    configure_environment()
    package = installed_package()
    if package is None:
        raise TransportError("NIXL is not installed: pip install nixl-cu13 (or nixl-cu12)")
    api = importlib.import_module(f"{package}._api")
    try:
        # NIXL's own progress thread spins: it takes most of a core of an idle daemon. Without it
        # UCX moves in poll() and notifications(), called by sender and receiver anyway.
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        return api.nixl_agent(name, config)
    except Exception as error:
        raise TransportError(
            f"NIXL could not start ({error}); UCX_TLS is {os.environ['UCX_TLS']}"
        ) from error


_LIBUCP = re.compile(r"\S*/libucp[-.][^/\s]*$", re.MULTILINE)


def nixl_libraries(package: str) -> Mapping[str, str]:
    """Return the versions of NIXL and UCX loaded by this process, by their contract names.

    Two versions of UCX may read one address differently and then abort, so both versions are in the
    contract. Pure reading. package: NIXL's, as it is imported. REQUIRES: a NIXL agent was made in
    this process; it loads UCX. Raises TransportError.
    """
    return {"nixl": _nixl(package), "ucx": _ucx()}


def _nixl(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise TransportError(
            f"{package} has no version: install it as a wheel, by pip install"
        ) from error


def _ucx() -> str:
    """Return the version of the mapped UCX library, perhaps another than in NIXL's wheel."""
    mapped = _LIBUCP.search(Path("/proc/self/maps").read_text())
    if mapped is None:
        raise TransportError("NIXL has loaded no UCX (libucp): reinstall the NIXL wheel")
    numbers = [ctypes.c_uint() for _ in range(3)]
    ctypes.CDLL(mapped[0]).ucp_get_version(*map(ctypes.byref, numbers))
    return ".".join(str(number.value) for number in numbers)


_TICK = 4.096e-6
_SPREAD = 4.0
_UNITS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "m": 60.0}
_TIME = re.compile(r"([0-9]+(?:\.[0-9]*)?)(ns|us|ms|s|m|)")


def retry_bound(timeout: str, retry_count: str) -> float:
    """Return the longest time until a write over an RDMA NIC has arrived, failed or been given up,
    in seconds, if the peer does not answer.

    Pure. Turns UCX's settings into the bound of InfiniBand's specification. A reliable connection
    waits 4.096 us * 2^t for an answer, in fact up to four times as long, and tries retry_count
    times more. Not measured: no NIC has run this yet. timeout, retry_count: values of
    UCX_RC_TIMEOUT and UCX_RC_RETRY_COUNT. Raises TransportError on values rejected by UCX.
    """
    time = _TIME.fullmatch(timeout)
    if time is None or not retry_count.isdecimal():
        raise TransportError(
            f"UCX_RC_TIMEOUT {timeout!r}, UCX_RC_RETRY_COUNT {retry_count!r}: give a time as 20ms "
            "and a number"
        )
    seconds = float(time[1]) * _UNITS[time[2]]
    return (int(retry_count) + 1) * _SPREAD * _rounded_up(seconds)


def _rounded_up(seconds: float) -> float:
    """Return the next longer timeout supported by a NIC: the smallest is two ticks."""
    waits = 2 * _TICK
    while waits <= seconds:
        waits *= 2
    return waits
