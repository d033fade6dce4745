"""NIXL metadata of peers: their form, and a trial of them in another process.

Thread rule: any thread. A peer's metadata is tried in a separate process, within a deadline, before
this process uses it.
"""

import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from tasuki.transfer.chunks.descriptors import Strip
from tasuki.transfer.errors import MetadataUnusable, TransportError
from tasuki.transfer.peer_values import integer

from .probe_process import REQUEST

_LONGEST_LINE = 4096
_LARGEST_BLOB = 1 << 18
"""Largest NIXL blob in bytes; UCX's address in it has some hundred bytes for each network
device."""
_MOST_PORTS = 64
_HIGHEST_PORT = (1 << 16) - 1
_MOST_DEVICES = 1 << 10
_ADDRESS_SPACE = 1 << 64
_LARGEST_ARENA = 1 << 46
_MEMORIES = ("DRAM", "VRAM")


@dataclass(frozen=True)
class NixlAddress:
    """Address of a node's arena for its peers' NIXL: a line of JSON, then NIXL's own blob.

    Pure. Invariant: unpacked values are bounded; the blob is opaque, and not safe to use before
    MetadataProbe has tried it. address, size: the arena's bytes [address, address + size). memory,
    device: NIXL's kind of memory, and the index of its GPU. ports: listening ports of the node's
    UCX.
    """

    address: int
    size: int
    device: int
    memory: str
    ports: tuple[int, ...]
    blob: bytes

    def pack(self) -> bytes:
        description = {
            "address": self.address,
            "size": self.size,
            "device": self.device,
            "memory": self.memory,
            "ports": list(self.ports),
        }
        return json.dumps(description).encode() + b"\n" + self.blob

    @staticmethod
    def unpack(metadata: bytes) -> "NixlAddress":
        """Return the address. Raises TransportError on data impossible for this version."""
        # Limited before it is parsed, because deeply nested JSON overflows the interpreter's stack.
        line, _, blob = metadata[: _LONGEST_LINE + _LARGEST_BLOB + 1].partition(b"\n")
        try:
            if len(line) > _LONGEST_LINE or len(blob) > _LARGEST_BLOB:
                raise ValueError(f"{len(metadata)} bytes are too many")
            read = json.loads(line)
            made = NixlAddress(
                address=integer(read["address"], _ADDRESS_SPACE - 1),
                size=integer(read["size"], _LARGEST_ARENA),
                device=integer(read["device"], _MOST_DEVICES),
                memory=read["memory"],
                ports=tuple(integer(port, _HIGHEST_PORT) for port in read["ports"][:_MOST_PORTS]),
                blob=blob,
            )
            if made.memory not in _MEMORIES:
                raise ValueError(f"memory is none of {', '.join(_MEMORIES)}")
            if made.address + made.size > _ADDRESS_SPACE:
                raise ValueError("the arena ends behind the last address")
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise TransportError(f"the peer's NIXL metadata cannot be read: {error!r}") from error
        return made


_MODULE = f"{__package__}.probe_process"


@dataclass(frozen=True)
class ProbeLimits:
    """Limits of the trial process. deadline: seconds for one trial. start: additional seconds for
    the process to start. share: most of the time spent on trials, as a fraction. burst: most
    seconds of unused trial time to save up. waiting: most callers at a time. remembered: most
    metadata remembered as usable."""

    deadline: float = 3.0
    start: float = 20.0
    share: float = 0.5
    burst: float = 5.0
    waiting: int = 3
    remembered: int = 256


class MetadataProbe:
    """Trial of a peer's NIXL metadata in a separate process, before this process uses them. An
    abort of that trial harms no other process.

    Owns the separate process (probe_process.py): started at the first need, started again if it
    died, and ended by close(). Remembers usable metadata. Knows nothing of endpoints. Thread rule:
    any thread; try_out() blocks for the duration of a trial, at most `deadline` and the process's
    start. Invariants: one trial at a time. Trials for unknown peers take at most a share of the
    time. Remembered metadata need no trial.
    """

    def __init__(self, limits: ProbeLimits | None = None) -> None:
        self._limits = limits or ProbeLimits()
        self._lock = threading.Lock()
        self._callers = threading.BoundedSemaphore(self._limits.waiting)
        self._process: subprocess.Popen[bytes] | None = None
        self._memory = threading.Lock()
        """Lock of the remembered metadata: known peers do not wait for trials of unknown ones."""
        self._usable: OrderedDict[bytes, str] = OrderedDict()
        self._credit = self._limits.burst
        self._credited = time.monotonic()
        self._closed = False

    def start(self) -> None:
        """Start the trial process without a wait, for the first trial. Raises MetadataUnusable."""
        with self._lock:
            self._running()

    def try_out(self, address: NixlAddress, strips: Sequence[Strip]) -> str:
        """Return the agent's name in the blob of `address`. Another process has then survived
        adding it and preparing `strips` of its arena. A remembered address is not tried again.
        Raises MetadataUnusable if the other process did not survive, or if too many trials are
        wanted concurrently."""
        key = _digest(address, strips)
        known = self._remembered(key)
        if known is not None:
            return known
        if not self._callers.acquire(blocking=False):
            raise MetadataUnusable("too many peers connect at once: connect again")
        try:
            with self._lock:
                name = self._tried(address, strips)
        finally:
            self._callers.release()
        with self._memory:
            self._usable[key] = name
            while len(self._usable) > self._limits.remembered:
                self._usable.popitem(last=False)
        return name

    def _remembered(self, key: bytes) -> str | None:
        with self._memory:
            if key in self._usable:
                self._usable.move_to_end(key)
            return self._usable.get(key)

    def _tried(self, address: NixlAddress, strips: Sequence[Strip]) -> str:
        process = self._running()
        begun = time.monotonic()
        self._require_credit(begun)
        request = json.dumps(
            {
                "memory": address.memory,
                "seconds": self._limits.deadline,
                "strips": [
                    (address.address + s.offset, s.length, address.device, s.stride, s.count)
                    for s in strips
                ],
            }
        ).encode()
        try:
            answer = self._ask(process, request, address.blob)
        except (OSError, ValueError) as error:
            # Whatever the cause, the next peer gets a new process.
            self._end()
            raise MetadataUnusable(f"the process that tries metadata failed: {error}") from error
        finally:
            # The process's start is not charged to the peer.
            self._credit -= min(time.monotonic() - begun, self._limits.deadline)
        if "agent" not in answer:
            raise MetadataUnusable(f"transport metadata are unusable: {answer.get('why')}")
        return str(answer["agent"])

    def _require_credit(self, now: float) -> None:
        limits = self._limits
        earned = (now - self._credited) * limits.share
        self._credit = min(limits.burst, self._credit + earned)
        self._credited = now
        if self._credit <= 0:
            wait = -self._credit / limits.share
            raise MetadataUnusable(
                f"too many new peers were tried lately: connect again in {wait:.1f} s"
            )

    def _ask(
        self, process: subprocess.Popen[bytes], request: bytes, blob: bytes
    ) -> dict[str, object]:
        """Send a trial request to the process and return its answer. Raises OSError if the process
        dies or is late, ValueError on an invalid answer."""
        assert process.stdin is not None and process.stdout is not None
        deadline = time.monotonic() + self._limits.start + self._limits.deadline
        unsaid = memoryview(REQUEST.pack(len(request), len(blob)) + request + blob)
        while unsaid:
            _wait([], [process.stdin.fileno()], deadline)
            unsaid = unsaid[os.write(process.stdin.fileno(), unsaid[: select.PIPE_BUF]) :]
        said = b""
        while not said.endswith(b"\n"):
            _wait([process.stdout.fileno()], [], deadline)
            part = os.read(process.stdout.fileno(), _LONGEST_LINE)
            if not part or len(said) > _LONGEST_LINE:
                raise ConnectionError("it died")
            said += part
        answer = json.loads(said)
        if not isinstance(answer, dict):
            raise ValueError("it answered no object")
        return answer

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise MetadataUnusable("this node is shutting down")
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-m", _MODULE],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    bufsize=0,
                    env=_environment(),
                )
            except OSError as error:
                raise MetadataUnusable(
                    f"no process can be started to try metadata in: {error}"
                ) from error
        return self._process

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        process.wait()

    def close(self) -> None:
        """End the trial process. Idempotent. Waits for a running trial."""
        with self._lock:
            self._closed = True
            self._end()


def _wait(readable: list[int], writable: list[int], deadline: float) -> None:
    """Wait until a pipe is readable or writable. Raises TimeoutError after the deadline. A writable
    pipe takes PIPE_BUF bytes without a wait."""
    poller = select.poll()
    for handle in readable:
        poller.register(handle, select.POLLIN)
    for handle in writable:
        poller.register(handle, select.POLLOUT)
    left = deadline - time.monotonic()
    if left <= 0 or not poller.poll(left * 1000):
        raise TimeoutError("it did not answer in time")


def _digest(address: NixlAddress, strips: Sequence[Strip]) -> bytes:
    described = json.dumps([asdict(strip) for strip in strips]).encode() + b"\n" + address.pack()
    return hashlib.sha256(described).digest()


def _environment() -> dict[str, str]:
    """Return the trial process's environment: this process's, without a GPU, and with UCX printing
    and dumping nothing at an abort."""
    return {
        **os.environ,
        "CUDA_VISIBLE_DEVICES": "",
        "UCX_HANDLE_ERRORS": "none",
        "UCX_LOG_LEVEL": "fatal",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
