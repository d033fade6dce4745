"""The checks of `tasuki doctor`: a machine, a checkpoint, ports and peers; and their findings.

Each check only looks and changes nothing. A check unable to look is a finding, not an error.
Machine checks cover interpreter, libraries, GPU and compiler, limits, clock, and the connection to
huggingface.co. Little memory or disk is never a failure: the need depends on the model, and a local
folder needs no network.

weights() reads only the headers of a checkpoint's files. It reports missing and unknown tensors,
their formats, and whether this machine's GPU multiplies these formats.
"""

import importlib
import os
import resource
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import grpc
import torch
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tasuki.client.channel import open_channel
from tasuki.engine.tiers.host_memory import available_bytes
from tasuki.engine.tiers.store import within
from tasuki.model.config_json import ModelConfigError
from tasuki.model.families.loading import assemble
from tasuki.model.families.registry import load_config, with_draft_layer
from tasuki.model.weights.layers import tensors
from tasuki.model.weights.matrix import WeightsError
from tasuki.model.weights.safetensors_files import StoredShapes
from tasuki.model.weights.safetensors_folder import Checkpoint, check_kernels
from tasuki.pycache.parts import FP8_ROWS
from tasuki.server.auth.callers import Access
from tasuki.server.bind import BindError, parse_bind
from tasuki.utils.tls import ClientTls, TlsError

from .config import DoctorConfig


class Verdict(Enum):
    OK = "ok"
    WARNING = "warning"
    FAILURE = "failure"


@dataclass(frozen=True)
class Finding:
    """One result of a check. mend: text on how to fix the fault; empty if there is nothing to
    do."""

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
    """Check for a loadable compiled radix tree."""
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
    """Check for a C compiler. Triton compiles a launcher of each kernel in C, only on a node with a
    GPU."""
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
    """Check the NIXL transfer library: make one agent and release it, like a daemon does at its
    start."""
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
    """Return the download folder of models from huggingface.co, by the rules of huggingface_hub."""
    home = Path(os.environ.get("HF_HOME") or Path.home() / ".cache" / "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or home / "hub")


def disk() -> Finding:
    """Check the free space and write access of the download folder's disk."""
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
    """Check the connection to the model hub within a timeout; skipped if HF_HUB_OFFLINE is set.
    Send no request. A failed connection is no fault."""
    if os.environ.get("HF_HUB_OFFLINE"):
        return ok("hub", "HF_HUB_OFFLINE is set: only models that are here are served by name")

    def reach() -> None:
        socket.create_connection((_HUB, 443), timeout=_HUB_SECONDS).close()

    try:
        # Name resolution without a server has no timeout of its own.
        within(_HUB_SECONDS, reach, TimeoutError(f"no answer in {_HUB_SECONDS:g} s"))
    except OSError as error:
        return ok(
            "hub",
            f"{_HUB} is not reached ({error.strerror or error}): serve a model from a folder",
        )
    return ok("hub", f"{_HUB} is reached: models can be served by name")


def weights(folder: str) -> Finding:
    try:
        model = with_draft_layer(load_config(folder), folder, "auto")
        with Checkpoint(Path(folder), StoredShapes) as stored:
            found = assemble(model, stored, torch.bfloat16, "meta")
            stored.check_left_over(drafts=model.draft_layers > 0)
            count = len(stored)
        if torch.cuda.is_available():
            check_kernels(folder, torch.device("cuda"))
    except (WeightsError, ModelConfigError) as error:
        return failure("weights", str(error), "fix the folder, or give another one")
    size = sum(tensor.nbytes for tensor in tensors(found)) / _GIB
    drafts = "with a draft layer" if model.draft_layers else "without a draft layer"
    return ok("weights", f"{count} tensors, {size:.2f} GiB as {found.formats}, {drafts}")


_PEER_SECONDS = 3.0


def findings(config: DoctorConfig) -> Iterator[Finding]:
    """Yield the findings of each check of `tasuki doctor`, in order; unset settings are skipped."""
    for check in MACHINE:
        yield check()
    yield memory()
    yield disk()
    yield hub()
    yield port("grpc port", config.bind, "--bind")
    if config.http_bind:
        yield port("http port", config.http_bind, "--http-bind")
    if config.model:
        yield model(config.model)
        yield weights(config.model)
    for target in filter(None, (part.strip() for part in config.peers.split(","))):
        yield peer(target, config.peers_ca)


def port(subject: str, bind: str, flag: str) -> Finding:
    """Check for a free server port: bind it, and release it again. flag: the port's flag in `tasuki
    doctor`."""
    try:
        host, number = parse_bind(bind, Access(insecure=True))
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family) as listener:
            listener.bind((host, number))
    except BindError as error:
        return failure(subject, str(error), f"give {flag} HOST:PORT")
    except OSError as error:
        return failure(
            subject, f"{bind}: {error.strerror or error}", "stop what holds it, or choose another"
        )
    return ok(subject, f"{bind} is free")


def model(folder: str) -> Finding:
    try:
        config = load_config(folder)
    except ModelConfigError as error:
        return failure("model", str(error), "give the folder of a checkpoint of a served family")
    layout = config.cache_layout("bfloat16", "bfloat16", "float32")
    small = config.cache_layout(FP8_ROWS, "bfloat16", "float32")
    return ok(
        "model",
        f"{config.layers} layers, {layout.page_bytes // 1024} KiB a page of 64 tokens, "
        f"{small.page_bytes // 1024} with --kv-dtype fp8, {layout.slot_bytes // 1024} KiB a state "
        "slot",
    )


def peer(target: str, ca: str) -> Finding:
    """Check that a peer answers gRPC's health service. target: HOST:PORT. ca: PEM file of the
    authority of its certificate."""
    try:
        with open_channel(target, ClientTls(ca) if ca else None) as channel:
            request = health_pb2.HealthCheckRequest()
            reply = health_pb2_grpc.HealthStub(channel).Check(request, timeout=_PEER_SECONDS)
    except TlsError as error:
        return failure("peer", str(error), "give --peers-ca the authority's PEM file")
    except grpc.RpcError as error:
        cause = error.code().name if isinstance(error, grpc.Call) else str(error)
        return failure(
            "peer",
            f"{target} does not answer: {cause}",
            "start it, open the port between the hosts, or give --peers-ca where it has TLS",
        )
    if reply.status != health_pb2.HealthCheckResponse.SERVING:
        return failure("peer", f"{target} is draining", "wait for its restart, or leave it out")
    return ok("peer", f"{target} serves")
