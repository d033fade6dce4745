"""Which NIXL and which UCX this process has loaded.

Two versions of UCX may read one address differently, and abort where they do: so both versions are
in the contract. Pure reading. REQUIRES: a NIXL agent was made in this process, which loads UCX.
"""

import ctypes
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tasuki.transfer.errors import TransportError

_LIBUCP = re.compile(r"\S*/libucp[-.][^/\s]*$", re.MULTILINE)


def nixl_libraries(package: str) -> Mapping[str, str]:
    """By the contract's names of them. package: NIXL's, as it is imported. Raises
    TransportError."""
    return {"nixl": _nixl(package), "ucx": _ucx()}


def _nixl(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError as error:
        raise TransportError(
            f"{package} has no version: install it as a wheel, by pip install"
        ) from error


def _ucx() -> str:
    """Of the library that is mapped, which need not be the one that came with NIXL."""
    mapped = _LIBUCP.search(Path("/proc/self/maps").read_text())
    if mapped is None:
        raise TransportError("NIXL has loaded no UCX (libucp): reinstall the NIXL wheel")
    numbers = [ctypes.c_uint() for _ in range(3)]
    ctypes.CDLL(mapped[0]).ucp_get_version(*map(ctypes.byref, numbers))
    return ".".join(str(number.value) for number in numbers)
