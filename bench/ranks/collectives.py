"""`tasuki bench collectives`: what ranks on GPUs exchange, beside NCCL and symmetric memory."""

import json
import math
import socket
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from tasuki.bench.errors import BenchError
from tasuki.bench.measure.report import Row, reported
from tasuki.engine.parallel.ranks import RankProcess, start_ranks
from tasuki.utils.flags import parse_config
from tasuki.utils.options import option

from .exchange import ExchangeRank

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
    out: str = option("", "write JSON here, as docs/results/gpu_*.json are")
    commit: str = option("", "of the source, where it is no git tree")

    def sizes(self) -> list[int]:
        """Bytes."""
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
    """As another rank does: the same calls, in the same order."""
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
    """How many are wrong."""
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
