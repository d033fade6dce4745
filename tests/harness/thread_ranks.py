"""Ranks as threads of one process: what they exchange, and a model for each."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.config import ModelConfig
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.safetensors_folder import load_weights
from tasuki.model.weights.shard import ExpertCut, Shard
from tests.harness.goldens import reference_dir
from tests.harness.waiting import HANG_SECONDS

Result = TypeVar("Result")


class ThreadExchange:
    """The collectives of ranks that are threads. calls: by rank, sums."""

    def __init__(self, ranks: int) -> None:
        self._given: list[Tensor | None] = [None] * ranks
        self._barrier = threading.Barrier(ranks, timeout=HANG_SECONDS)
        self.calls = [0] * ranks

    def sum_of(self, rank: int) -> Callable[[Tensor], Tensor]:
        def reduce(partial: Tensor) -> Tensor:
            self.calls[rank] += 1
            total = torch.zeros_like(partial)
            for item in self._all(rank, partial):
                total = total + item
            return total

        return reduce

    def gather_of(self, rank: int) -> Callable[[Tensor], Tensor]:
        return lambda part: torch.cat(self._all(rank, part), dim=-1)

    def _all(self, rank: int, given: Tensor) -> list[Tensor]:
        self._given[rank] = given
        self._barrier.wait()
        found = [item.clone() for item in self._given if item is not None]
        self._barrier.wait()
        return found

    def broken(self) -> None:
        """A rank has failed: the others need not wait."""
        self._barrier.abort()


def rank_models(
    name: str,
    ranks: int,
    experts: ExpertCut = ExpertCut.BY_WIDTH,
    draft_layers: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[ThreadExchange, list[Qwen35Model]]:
    """Of a golden, each with its own slices of the files."""
    folder = reference_dir(name)
    config = replace(ModelConfig.load(folder), draft_layers=draft_layers)
    exchange = ThreadExchange(ranks)
    models = []
    for rank in range(ranks):
        shard = Shard(rank, ranks, experts)
        weights = load_weights(folder, config, dtype, shard=shard)
        part = shard.part(config)
        backend = TorchBackend(part, exchange.sum_of(rank))
        models.append(Qwen35Model(part, weights, backend, exchange.gather_of(rank)))
    return exchange, models


def run_ranks(
    exchange: ThreadExchange, models: Sequence[Qwen35Model], run: Callable[[Qwen35Model], Result]
) -> list[Result]:
    """What `run` returns of each rank's model, all at once."""

    def guarded(model: Qwen35Model) -> Result:
        try:
            return run(model)
        except BaseException:
            exchange.broken()
            raise

    with ThreadPoolExecutor(len(models)) as threads:
        return [*threads.map(guarded, models)]
