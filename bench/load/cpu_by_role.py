"""CPU time of a node's threads and processes, by role (front, engine). Reads Linux's /proc.

Recognises threads by their names in the product (utils/system.py). Pure except for /proc.

A process without an engine thread is an API server and counts fully as front. The started process
may also run the engine. Then its threads named here count as engine, and all its other threads as
front. An engine in a separate process counts fully as engine.
"""

import os
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ENGINE_LOOP = "tasuki-engine"
_ENGINE = (
    ENGINE_LOOP,
    "tasuki-digests",
    "tasuki-sender",
    "tasuki-receiver",
    "tasuki-handover",
    "tasuki-early",
    "tasuki-ticks",
    "tasuki-writes",
)
_NANOSECONDS = 1e-9
_TICK_SECONDS = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
ENDED = "(ended)"
"""Label for the CPU time of all threads ended during the measurement."""


@dataclass(frozen=True)
class CpuSample:
    """CPU seconds used until now. threads: seconds by (process, thread). names: thread names by the
    same keys. processes: seconds by process, including ended threads, to one clock tick. memory:
    resident bytes of all processes."""

    threads: dict[tuple[int, int], float]
    names: dict[tuple[int, int], str]
    processes: dict[int, float]
    memory: int


@dataclass
class CpuUse:
    """CPU seconds used between two samples. engine_loop: seconds of the thread stepping the engine,
    part of `engine`. threads: seconds by "role/thread name"."""

    engine: float = 0.0
    front: float = 0.0
    engine_loop: float = 0.0
    threads: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, role: str, name: str, seconds: float) -> None:
        if role == "engine":
            self.engine += seconds
        else:
            self.front += seconds
        if name == ENGINE_LOOP:
            self.engine_loop += seconds
        self.threads[f"{role}/{name}"] += seconds


def sample(root: int) -> CpuSample:
    """Sample a process and its descendants; processes ending meanwhile are left out. root: id of
    the process."""
    threads: dict[tuple[int, int], float] = {}
    names: dict[tuple[int, int], str] = {}
    processes: dict[int, float] = {}
    memory = 0
    for pid in [root, *descendants(root)]:
        try:
            fields = _stat(pid)
            processes[pid] = (int(fields[11]) + int(fields[12])) * _TICK_SECONDS
            memory += int(fields[21]) * _PAGE_BYTES
            for task in Path(f"/proc/{pid}/task").iterdir():
                key = pid, int(task.name)
                ran, *_ = (task / "schedstat").read_text().split()
                threads[key] = int(ran) * _NANOSECONDS
                names[key] = (task / "comm").read_text().strip()
        except (OSError, ValueError):
            continue
    return CpuSample(threads, names, processes, memory)


def use_between(root: int, before: CpuSample, after: CpuSample) -> CpuUse:
    """Return the CPU use between two samples. root: id of the started process."""
    use = CpuUse()
    engines = {pid for (pid, _), name in after.names.items() if name == ENGINE_LOOP}
    for pid, whole in after.processes.items():
        grown = {
            key: seconds - before.threads.get(key, 0.0)
            for key, seconds in after.threads.items()
            if key[0] == pid
        }
        apart = pid in engines and pid != root
        for key, seconds in grown.items():
            name = after.names[key]
            own = pid in engines and name.startswith(_ENGINE)
            use.add("engine" if apart or own else "front", name, seconds)
        ended = whole - before.processes.get(pid, 0.0) - sum(grown.values())
        if ended > 2 * _TICK_SECONDS:
            use.add("engine" if apart else "front", ENDED, ended)
    return use


def descendants(root: int) -> Iterator[int]:
    children: dict[int, list[int]] = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                children[int(_stat(int(entry.name))[1])].append(int(entry.name))
            except (OSError, ValueError):
                continue
    waiting = [root]
    while waiting:
        found = children[waiting.pop()]
        yield from found
        waiting += found


def _stat(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat, from the third one (the process state) on."""
    # The name before the fields may contain anything, but ends with the last parenthesis.
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
