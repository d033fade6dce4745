"""A NIXL agent over UCX, made the way that every process here makes one.

Knows what UCX reads from the environment. Imports no torch: metadata are tried in a process that
has none. Invariant: what the user has set stays.
"""

import importlib
import importlib.util
import os
from typing import Any

from tasuki.transfer.errors import TransportError

_PACKAGES = ("nixl_cu13", "nixl_cu12")

ENVIRONMENT = {
    # No shared memory and no cma by default: with posix a receiver segfaults inside UCX when its
    # peer is killed while the two connect, with sysv connecting was seen to hang, with cma a sender
    # aborts on close after its peer was killed in mid-transfer (NIXL 1.5.1). tcp is slower on one
    # host, survives all of it, and sees a peer's death at once.
    "UCX_TLS": "cuda_copy,cuda_ipc,rc,tcp,self",
    # UCX authenticates nobody: whoever sets another interface declares it as trusted.
    "UCX_NET_DEVICES": "lo",
    # For whoever adds them: without these two, agents on one host cannot be made.
    "UCX_POSIX_ERROR_HANDLING": "y",
    "UCX_SYSV_ERROR_HANDLING": "y",
    "UCX_KEEPALIVE_INTERVAL": "1s",
    # UCX's own (1 s, 7) let a NIC repeat a write for half a minute; the fence waits that long.
    "UCX_RC_TIMEOUT": "20ms",
    "UCX_RC_RETRY_COUNT": "7",
    "UCX_WARN_UNUSED_ENV_VARS": "n",
    "UCX_LOG_LEVEL": "error",
    "NIXL_LOG_LEVEL": "ERROR",
}


def configure_environment() -> dict[str, str]:
    """Set what UCX reads once, when NIXL is imported; what the user has set stays. The effective
    values."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    return {name: os.environ[name] for name in ENVIRONMENT}


def installed_package() -> str | None:
    """The NIXL wheel that can be imported here, if any."""
    return next((name for name in _PACKAGES if importlib.util.find_spec(name)), None)


def new_agent(name: str) -> Any:
    """Raises TransportError when NIXL is not installed or its UCX cannot start."""
    configure_environment()
    package = installed_package()
    if package is None:
        raise TransportError("NIXL is not installed: pip install nixl-cu13 (or nixl-cu12)")
    api = importlib.import_module(f"{package}._api")
    try:
        # NIXL's own progress thread spins: it takes most of a core of an idle daemon. Without it
        # UCX moves in poll() and notifications(), which sender and receiver call anyway.
        config = api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])
        return api.nixl_agent(name, config)
    except Exception as error:
        raise TransportError(
            f"NIXL could not start ({error}); UCX_TLS is {os.environ['UCX_TLS']}"
        ) from error
