"""What tasuki needs of a machine: interpreter, libraries, GPU and compiler, limits, clock.

Each check looks and changes nothing. A check that fails to look is a finding, not an error.

Whether there is memory and disk for a model, and a way to huggingface.co.

None of it is a failure: how much is needed depends on the model, and a folder needs no network.
"""

import importlib
import os
import resource
import shutil
import socket
import sys
import time
from pathlib import Path

import torch

from tasuki.engine.tiers.host_memory import available_bytes
from tasuki.engine.tiers.store import within

from .finding import Finding, failure, ok, warning

_MIB = 2**20
_SHARED_MIB = 256
_OPEN_FILES = 4096


def python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        return warning("python", version, "tasuki is tested on 3.11 to 3.13: use one of those")
    return ok("python", version)


def tree() -> Finding:
    """The compiled radix tree."""
    try:
        module = importlib.import_module("tasuki.pycache._cpp_cache")
    except ImportError as error:
        return failure("tree", str(error), "build the package again: pip install -e . (needs g++)")
    return ok("tree", f"the compiled cache is {module.__file__}")


def gpu() -> Finding:
    if not torch.cuda.is_available():
        built = torch.version.cuda
        if built is None:
            return ok(
                "gpu", f"none: torch {torch.__version__} is a CPU build, the CPU path is used"
            )
        return warning(
            "gpu",
            f"torch {torch.__version__} is built for CUDA {built} but sees no GPU",
            "check `nvidia-smi` and the container's --gpus; without a GPU the CPU path is used",
        )
    name, memory = torch.cuda.get_device_name(), torch.cuda.get_device_properties(0).total_memory
    found = (
        f"{torch.cuda.device_count()} x {name}, {memory // 2**30} GiB, CUDA {torch.version.cuda}"
    )
    try:
        triton = importlib.import_module("triton")
    except ImportError:
        return failure("gpu", f"{found}, but no triton", "pip install 'tasuki[cuda]'")
    return ok("gpu", f"{found}, triton {triton.__version__}")


def compiler() -> Finding:
    """Triton compiles a launcher of each kernel in C, on a GPU's node alone."""
    if not torch.cuda.is_available():
        return ok("compiler", "not needed: only a GPU's kernels are compiled at run time")
    asked = os.environ.get("CC")
    for name in filter(None, (asked, "gcc", "cc", "clang")):
        found = shutil.which(name)
        if found is not None:
            return ok("compiler", found)
    return failure(
        "compiler",
        f"CC is {asked}, which is not there" if asked else "no C compiler is on PATH",
        "apt-get install gcc, or set CC: Triton compiles kernels when a node starts",
    )


def nixl() -> Finding:
    """One agent is made and let go, as a daemon does at its start."""
    from tasuki.transfer.errors import TransferError
    from tasuki.transfer.transports.nixl.transport import NixlTransport

    try:
        NixlTransport("doctor").close()
    except (ImportError, OSError, TransferError) as error:
        return failure(
            "nixl",
            str(error),
            "pip install nixl-cu13 (or tasuki[cu12] for a CUDA 12 driver), one of the two only",
        )
    devices = os.environ.get("UCX_NET_DEVICES")
    over = devices or "loopback alone (UCX_NET_DEVICES is not set)"
    return ok("nixl", f"hand-overs can be sent, over {over}")


def shared_memory(folder: str = "/dev/shm") -> Finding:
    try:
        stat = os.statvfs(folder)
    except OSError as error:
        return warning("shm", f"{folder}: {error.strerror}", "mount a tmpfs there")
    free = stat.f_bavail * stat.f_frsize // _MIB
    if free < _SHARED_MIB:
        return warning(
            "shm",
            f"{free} MiB of shared memory free in {folder}",
            f"give at least {_SHARED_MIB} MiB: docker run --shm-size 1g",
        )
    return ok("shm", f"{free} MiB of shared memory free in {folder}")


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        return warning(
            "files",
            f"{soft} open files allowed (hard limit {hard})",
            f"ulimit -n {_OPEN_FILES}, or LimitNOFILE in the unit: each client is a socket",
        )
    most = "any number of" if soft == resource.RLIM_INFINITY else f"up to {soft}"
    return ok("files", f"{most} files and connections may be open")


def locked_memory(devices: Path = Path("/sys/class/infiniband")) -> Finding:
    cards = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if cards and soft != resource.RLIM_INFINITY:
        return failure(
            "rdma",
            f"{', '.join(cards)}, but only {soft // _MIB} MiB may be locked",
            "ulimit -l unlimited, or LimitMEMLOCK=infinity: the arena is registered whole",
        )
    return ok("rdma", ", ".join(cards) or "no RDMA card: hand-overs go over TCP")


def clock() -> Finding:
    info = time.get_clock_info("monotonic")
    if info.resolution > 1e-6:
        return warning(
            "clock",
            f"it ticks every {info.resolution} s, and transfers are timed in microseconds",
            "choose a finer clock source of the system, as tsc",
        )
    return ok("clock", f"fine enough: it ticks every {info.resolution * 1e9:g} ns")


MACHINE = (python, tree, gpu, compiler, nixl, shared_memory, open_files, locked_memory, clock)


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
