"""Whether there is memory and disk for a model, and a way to huggingface.co.

None of it is a failure: how much is needed depends on the model, and a folder needs no network.
"""

import os
import socket
from pathlib import Path

from tasuki.engine.tiers.host_memory import available_bytes
from tasuki.engine.tiers.store.within import within

from .finding import Finding, ok, warning

_GIB = 2**30
_LEAST_MEMORY = 2
_LEAST_DISK = 5
_HUB_SECONDS = 3.0
_HUB = "huggingface.co"


def memory() -> Finding:
    free = available_bytes() / _GIB
    if free < _LEAST_MEMORY:
        return warning(
            "memory",
            f"{free:.1f} GiB free: the smallest node takes {_LEAST_MEMORY}",
            "end other processes, or raise the container's memory limit",
        )
    return ok("memory", f"{free:.1f} GiB free")


def hub_folder() -> Path:
    """Where models from huggingface.co are kept, as huggingface_hub has it."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def disk() -> Finding:
    """Of the folder that downloads go to."""
    folder = hub_folder()
    there = next(each for each in (folder, *folder.parents) if each.exists())
    status = os.statvfs(there)
    free = status.f_bavail * status.f_frsize / _GIB
    if not os.access(there, os.W_OK):
        return warning(
            "disk", f"{there} cannot be written", f"chown it, or set HF_HOME instead of {folder}"
        )
    if free < _LEAST_DISK:
        return warning(
            "disk",
            f"{free:.1f} GiB free for downloads in {folder}",
            "free some, or set HF_HOME to a folder on another disk: a 9B model takes 18 GiB",
        )
    return ok("disk", f"{free:.1f} GiB free for downloads in {folder}")


def hub() -> Finding:
    """Whether a connection can be opened, within a bound; nothing is asked."""
    if os.environ.get("HF_HUB_OFFLINE"):
        return ok("hub", "HF_HUB_OFFLINE is set: only models that are here are served by name")

    def reach() -> None:
        socket.create_connection((_HUB, 443), timeout=_HUB_SECONDS).close()

    try:
        # A resolver without a server has no bound of its own.
        within(_HUB_SECONDS, reach, TimeoutError(f"no answer in {_HUB_SECONDS:g} s"))
    except OSError as error:
        return ok(
            "hub",
            f"{_HUB} is not reached ({error.strerror or error}): serve a model from a folder",
        )
    return ok("hub", f"{_HUB} is reached: models can be served by name")
