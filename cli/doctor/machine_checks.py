"""What tasuki needs of a machine: interpreter, libraries, GPU, shared memory, limits, clock.

Each check looks and changes nothing. A check that fails to look is a finding, not an error.
"""

import importlib
import os
import resource
import sys
import time
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import torch


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """mend: what to do; empty where there is nothing to do."""

    subject: str
    verdict: Verdict
    found: str
    mend: str = ""

    def __str__(self) -> str:
        line = f"{self.verdict.value:<8} {self.subject:<12} {self.found}"
        return line + (f"\n{'':<22}-> {self.mend}" if self.mend else "")


def ok(subject: str, found: str) -> Finding:
    return Finding(subject, Verdict.OK, found)


def warning(subject: str, found: str, mend: str) -> Finding:
    return Finding(subject, Verdict.WARNING, found, mend)


def failure(subject: str, found: str, mend: str) -> Finding:
    return Finding(subject, Verdict.FAILURE, found, mend)


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
    return ok("tree", str(module.__file__))


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
    devices = os.environ.get("UCX_NET_DEVICES", "lo (default)")
    return ok("nixl", f"UCX works, UCX_NET_DEVICES {devices}")


def shared_memory(folder: str = "/dev/shm") -> Finding:
    try:
        stat = os.statvfs(folder)
    except OSError as error:
        return warning("shm", f"{folder}: {error.strerror}", "mount a tmpfs there")
    free = stat.f_bavail * stat.f_frsize // _MIB
    if free < _SHARED_MIB:
        return warning(
            "shm",
            f"{free} MiB free in {folder}",
            f"give at least {_SHARED_MIB} MiB: docker run --shm-size 1g",
        )
    return ok("shm", f"{free} MiB free in {folder}")


def open_files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < _OPEN_FILES:
        return warning(
            "files",
            f"{soft} open files allowed (hard limit {hard})",
            f"ulimit -n {_OPEN_FILES}, or LimitNOFILE in the unit: each client is a socket",
        )
    return ok("files", f"{'any number of' if soft == resource.RLIM_INFINITY else soft} open files")


def locked_memory(devices: Path = Path("/sys/class/infiniband")) -> Finding:
    cards = sorted(path.name for path in devices.iterdir()) if devices.is_dir() else []
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    if cards and soft != resource.RLIM_INFINITY:
        return failure(
            "rdma",
            f"{', '.join(cards)}, but only {soft // _MIB} MiB may be locked",
            "ulimit -l unlimited, or LimitMEMLOCK=infinity: the arena is registered whole",
        )
    return ok("rdma", ", ".join(cards) or "no RDMA card: transfers go over TCP")


def clock() -> Finding:
    info = time.get_clock_info("monotonic")
    if info.resolution > 1e-6:
        return warning(
            "clock",
            f"{info.implementation} ticks every {info.resolution} s",
            "choose a finer clock source: windows are timed in microseconds",
        )
    return ok("clock", f"{info.implementation}, resolution {info.resolution:g} s")


MACHINE = (python, tree, gpu, nixl, shared_memory, open_files, locked_memory, clock)
