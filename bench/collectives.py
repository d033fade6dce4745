"""`tasuki bench collectives`: the time of all-reduces and exchanges between ranks on GPUs, beside
NCCL and symmetric memory."""

import json
import math
import os
import random
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median

import torch
from torch import Tensor

from tasuki.bench.measure.report import Row, reported
from tasuki.bench.measure.results import OUT
from tasuki.bench.measure.timing import once_seconds
from tasuki.engine.parallel.collectives import GlooCollectives
from tasuki.engine.parallel.peer_collectives import Mailboxes, PeerCollectives
from tasuki.engine.parallel.ranks import RankProcess, start_ranks
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

from .errors import BenchError

_LIMIT_SECONDS = 30.0
_CALLS = 40
"""Number of calls in one CUDA graph, enough to make the graph's own launch time negligible."""
_REPLAYS = 9
_MOST_DELAY_CYCLES = 40_000
_TOGETHER = 1000
"""Number of replays between two checks of the time limit."""
_OFF = {"TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NCCL_NVLS_ENABLE": "0"}


def captured(graph: torch.cuda.CUDAGraph) -> AbstractContextManager[None]:
    """Capture a graph in thread-local mode. NCCL's own thread queries events meanwhile, and a
    stricter capture would fail."""
    found: AbstractContextManager[None] = torch.cuda.graph(graph, capture_error_mode="thread_local")
    return found


class ExchangeRank:
    """One of several ranks exchanging tensors on GPUs during a bench.

    Owns its mailboxes, and for comparison NCCL and PyTorch's symmetric memory over the same ranks.
    Every rank calls the same methods in the same order. Multicast stays off, like in the engine.
    """

    def __init__(self, meeting: Path, rank: int, ranks: int) -> None:
        """Join the ranks. meeting: path of a file for one use; NCCL uses the file with `.nccl`
        appended."""
        os.environ.update(_OFF)
        self.rank, self.ranks = rank, ranks
        self.device = torch.device("cuda", rank)
        torch.cuda.set_device(self.device)
        self._host = GlooCollectives(meeting, rank, ranks, 120.0)
        self.own = PeerCollectives(
            Mailboxes.met(self._host.exchange, rank, self.device), _LIMIT_SECONDS
        )
        torch.distributed.init_process_group(
            "nccl",
            init_method=f"file://{meeting}.nccl",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=_LIMIT_SECONDS),
            device_id=self.device,
        )

    def close(self) -> None:
        torch.distributed.destroy_process_group()

    def part(self, elements: int, seed: int, dtype: torch.dtype = torch.bfloat16) -> list[Tensor]:
        """Return every rank's input tensor of `elements` numbers, on this device, in rank order."""
        found = []
        for rank in range(self.ranks):
            generator = torch.Generator(self.device).manual_seed(1000 * seed + rank)
            spread = torch.randn(elements, device=self.device, generator=generator)
            found.append((spread * 10 ** spread.roll(1)).to(dtype))
        return found

    def sums_exactly(self, elements: int, seed: int, dtype: torch.dtype) -> bool:
        parts = self.part(elements, seed, dtype)
        total = parts[0].float()
        for part in parts[1:]:
            total = total + part.float()
        own = parts[self.rank].view(1, -1).clone()
        summed = torch.equal(self.own.sum(own)[0], total.to(dtype))
        joined = self.own.gather(parts[self.rank].view(1, -1))
        equal = summed and torch.equal(joined[0], torch.cat(parts))
        self.own.check()
        return equal

    def seconds(self, kind: str, elements: int) -> float:
        """Return the seconds of one all-reduce of `elements` bf16 numbers. kind: the
        implementation. Returns inf if the implementation is unavailable here."""
        try:
            call = getattr(self, f"_{kind}")(elements)
        except (RuntimeError, AttributeError, ImportError) as error:
            print(f"rank {self.rank}: {kind}: {str(error)[:300]}", flush=True)
            return float("inf")
        return self._timed(call, in_graph=kind not in ("nccl_eager", "own_eager"))

    def _own(self, elements: int) -> Callable[[], object]:
        part = torch.zeros(1, elements, dtype=torch.bfloat16, device=self.device)
        return lambda: self.own.sum(part)

    _own_eager = _own

    def _nccl(self, elements: int) -> Callable[[], object]:
        part = torch.zeros(elements, dtype=torch.bfloat16, device=self.device)
        return lambda: torch.distributed.all_reduce(part)

    _nccl_eager = _nccl

    def _symmetric(self, name: str, elements: int) -> Callable[[], object]:
        from torch.distributed import _symmetric_memory as symmetric

        group = torch.distributed.group.WORLD
        assert group is not None
        part = symmetric.empty(elements, dtype=torch.bfloat16, device=self.device)
        symmetric.rendezvous(part, group.group_name)
        part.zero_()
        operator = getattr(torch.ops.symm_mem, name)
        return lambda: operator(part, "sum", group.group_name)

    def _symmetric_one_shot(self, elements: int) -> Callable[[], object]:
        return self._symmetric("one_shot_all_reduce", elements)

    def _symmetric_two_shot(self, elements: int) -> Callable[[], object]:
        return self._symmetric("two_shot_all_reduce_", elements)

    def _timed(self, call: Callable[[], object], *, in_graph: bool) -> float:
        """Return the median seconds of one `call`, over repeated runs of many calls: graph replays
        if in_graph."""
        for _ in range(3):
            call()
        torch.cuda.synchronize()

        def calls() -> None:
            for _ in range(_CALLS):
                call()

        run = calls
        if in_graph:
            graph = torch.cuda.CUDAGraph()
            with captured(graph):
                calls()
            run = graph.replay
        run()
        found = []
        for _ in range(_REPLAYS):
            torch.cuda.synchronize()
            self._host.exchange(bytes(1))
            found.append(once_seconds(run, self.device) / _CALLS)
        return median(found)

    def differences(self, replays: int, sizes: list[int], seconds: float) -> tuple[int, int]:
        """Replay all-reduces, and return the number of wrong results and the number of replays.
        Stops after `replays`, or when one rank has run `seconds`. Each rank waits a random time
        before about every other replay. Numbers are whole and change each time, so a sum is exact
        and data of another replay shows. sizes: elements of float32; each replay uses one size."""
        wrong = torch.zeros(1, dtype=torch.int64, device=self.device)
        graphs = []
        for size in sizes:
            number = torch.zeros(1, size, device=self.device)
            place = torch.arange(size, device=self.device) % 1013
            base = self.ranks * (self.ranks - 1) // 2

            def step(number: Tensor = number, place: Tensor = place, base: int = base) -> None:
                number += 1
                total = self.own.sum(number + place + self.rank)
                expected = self.ranks * (number + place) + base
                wrong.add_((total != expected).any())

            step()
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with captured(graph):
                step()
            # Keep `step` too: a graph does not keep its captured tensors alive.
            graphs.append((graph, step))
        order, delays = random.Random(1), random.Random(2 + self.rank)
        done, ends = 0, time.monotonic() + seconds
        for _ in range(replays):
            if delays.random() < 0.5:
                torch.cuda._sleep(delays.randrange(_MOST_DELAY_CYCLES))  # type: ignore[no-untyped-call]
            graphs[order.randrange(len(graphs))][0].replay()
            done += 1
            if done % _TOGETHER == 0:
                torch.cuda.synchronize()
                self.own.check()
                # All ranks replay the same number of times, even if their times end differently.
                if any(map(any, self._host.exchange(bytes([time.monotonic() > ends])))):
                    break
        torch.cuda.synchronize()
        self.own.check()
        return int(wrong.item()), done


_KINDS = {
    "nccl": "NCCL in a graph",
    "nccl_eager": "NCCL",
    "symmetric_one_shot": "symmetric memory, one shot",
    "symmetric_two_shot": "symmetric memory, two shots",
}
_SMALL, _SMALL_SECONDS = 256 << 10, 8e-6
_LARGE, _LARGE_SECONDS = 2 << 20, 14e-6
_ELEMENT_BYTES = 2
_REPLAY_SIZES = [64, 2048, 40_000, 524_288, 1_500_000]


@dataclass(frozen=True)
class CollectivesConfig:
    ranks: int = option(2, "each a process with a GPU of its own")
    kib: str = option(
        "8,16,32,64,128,256,512,1024,2048,4096,81920", "KiB of bf16 of each all-reduce, by commas"
    )
    replays: int = option(100_000, "of all-reduces with random delays, whose sums are compared")
    seconds: float = option(300.0, "at most, of these replays")
    out: str = option("", OUT)
    commit: str = option("", "of the source, where it is no git tree")

    def sizes(self) -> list[int]:
        """Return the message sizes in bytes."""
        return [int(text) << 10 for text in self.kib.split(",")]


def main(argv: Sequence[str]) -> int:
    config = parse_config(
        "tasuki bench collectives", "Time what ranks exchange.", argv, CollectivesConfig
    )
    if torch.cuda.device_count() < config.ranks:
        raise BenchError(
            f"{config.ranks} ranks need as many GPUs, and {torch.cuda.device_count()} are here: "
            "give --ranks, or more in CUDA_VISIBLE_DEVICES"
        )
    report = reported(
        f"collectives of {config.ranks} ranks",
        torch.device("cuda"),
        torch.bfloat16,
        config.commit,
        config.out,
    )
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
        meeting = Path(folder) / "meeting"
        with _others(config, meeting):
            rank = ExchangeRank(meeting, 0, config.ranks)
            wrong = _compare(rank)
            report.note(f"{wrong} sums and gatherings of {_COMPARED} are not what they should be.")
            for size in config.sizes():
                report.add(_row(rank, size))
            differing, done = rank.differences(config.replays, _REPLAY_SIZES, config.seconds)
            report.note(
                f"{differing} of {done} replayed sums, each rank behind random delays, are wrong."
            )
            rank.close()
    return 1 if wrong or differing else 0


@contextmanager
def _others(config: CollectivesConfig, meeting: Path) -> Iterator[None]:
    jobs = [partial(_follow, config, meeting, rank) for rank in range(1, config.ranks)]
    processes: list[RankProcess] = start_ranks(jobs)
    try:
        yield
        for process in processes:
            found = json.loads(process.connection.recv(1 << 16) or b"null")
            if found != [0, 0]:
                raise BenchError(f"another rank found {found} wrong sums, and not [0, 0]")
    finally:
        for process in processes:
            process.kill()
            process.reap(10)
            process.close()


def _follow(
    config: CollectivesConfig, meeting: Path, number: int, connection: socket.socket
) -> int:
    """Run as a rank other than the first: make the same calls in the same order."""
    rank = ExchangeRank(meeting, number, config.ranks)
    wrong = _compare(rank)
    for size in config.sizes():
        _row(rank, size)
    differing, _ = rank.differences(config.replays, _REPLAY_SIZES, config.seconds)
    connection.sendall(json.dumps([wrong, differing]).encode())
    rank.close()
    return 0


_SHAPES = (1, 16, 4096, 5120, 100_003, 2_097_152, 6_000_000)
_DTYPES = (torch.bfloat16, torch.float32, torch.float16)
_SEEDS = 5
_COMPARED = len(_SHAPES) * len(_DTYPES) * _SEEDS


def _compare(rank: ExchangeRank) -> int:
    """Return the number of all-reduces with a wrong sum."""
    return sum(
        not rank.sums_exactly(elements, seed, dtype)
        for elements in _SHAPES
        for dtype in _DTYPES
        for seed in range(_SEEDS)
    )


def _row(rank: ExchangeRank, size: int) -> Row:
    elements = size // _ELEMENT_BYTES
    own = rank.seconds("own", elements)
    eager = rank.seconds("own_eager", elements)
    others = {name: rank.seconds(kind, elements) for kind, name in _KINDS.items()}
    limit = _SMALL_SECONDS if size <= _SMALL else _LARGE_SECONDS if size <= _LARGE else math.inf
    judged = rank.ranks == 2 and size in (_SMALL, _LARGE)
    return Row(
        f"all-reduce of {size >> 10} KiB in a graph",
        own,
        target=f"<= {limit * 1e6:g} us" if judged else "",
        met=own <= limit if judged else None,
        others={name: seconds for name, seconds in others.items() if math.isfinite(seconds)},
        extra={"outside us": eager * 1e6, "GB/s": size * (rank.ranks - 1) / own / 1e9},
    )
