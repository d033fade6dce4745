"""Process for the first trial of a peer's NIXL metadata, run as `python -m` of this file.

UCX aborts the process on an address it cannot read. So each address is tried in a fork of its own,
without an arena, a GPU or peers. Reads requests on stdin and answers on stdout, one after the
other. Ends when stdin ends, so at any end of the daemon. Imports neither torch nor the engine: 50
MB, half a second. Invariants: one fork at a time, ended and reaped before the answer. A fork ends
by itself even if this process is killed.
"""

import json
import os
import resource
import select
import signal
import struct
import sys
import time
from pathlib import Path
from typing import Any, BinaryIO

from .agent import new_agent

REQUEST = struct.Struct("<II")
"""Lengths in bytes of a request's two parts: JSON {memory, strips, seconds}, and NIXL's blob."""
_EXTRA_MEMORY = 2 << 30
_LONGEST_ANSWER = 4096


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer trial requests until the input ends. Each answer is a line of JSON: {"agent": the name
    in the blob}, or {"why": the failure of its fork}."""
    # UCX and the plugins are loaded once, here, for every fork.
    new_agent("probe-warm")
    while head := requests.read(REQUEST.size):
        length, size = REQUEST.unpack(head)
        request = json.loads(requests.read(length))
        answer = _in_a_fork(request, requests.read(size))
        answers.write(json.dumps(answer).encode() + b"\n")
        answers.flush()


def _in_a_fork(request: dict[str, Any], blob: bytes) -> dict[str, str]:
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        _try(request, blob, writing)
    os.close(writing)
    said, late = _read_until(reading, time.monotonic() + request["seconds"])
    os.close(reading)
    if late:
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    if late:
        return {"why": f"it took longer than {request['seconds']} s"}
    if os.WIFSIGNALED(status):
        return {"why": f"it killed the process that tried it ({_signal(os.WTERMSIG(status))})"}
    try:
        answer: dict[str, str] = json.loads(said)
    except ValueError:
        return {"why": f"it ended the process that tried it (status {status})"}
    return answer


def _try(request: dict[str, Any], blob: bytes, answers: int) -> None:
    """Try the NIXL blob in this forked process, write the answer and exit. Never returns."""
    try:
        signal.setitimer(signal.ITIMER_REAL, request["seconds"] + 1.0)
        _bound_memory()
        agent = new_agent("probe")
        name = agent.add_remote_agent(blob).decode()
        if request["strips"]:
            import numpy as np

            rows = np.array(request["strips"], dtype=np.uint64)
            agent.prep_xfer_dlist(name, rows, request["memory"])
        answer = {"agent": name}
    except Exception as error:
        answer = {"why": f"{type(error).__name__}: {error}"[:256]}
    os.write(answers, json.dumps(answer).encode()[:_LONGEST_ANSWER])
    # Exit without any cleanup, because the process's state may be broken.
    os._exit(0)


def _bound_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * os.sysconf("SC_PAGE_SIZE") + _EXTRA_MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _read_until(handle: int, deadline: float) -> tuple[bytes, bool]:
    """Return all bytes until the end of the file, and True if the deadline came first."""
    said = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([handle], [], [], left)[0]:
            break
        part = os.read(handle, _LONGEST_ANSWER)
        if not part:
            return said, False
        said += part
    return said, True


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


if __name__ == "__main__":
    # The daemon decides the end of this process; a terminal's interrupt is for the daemon.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    serve(sys.stdin.buffer, sys.stdout.buffer)
