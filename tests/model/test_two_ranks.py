"""Ranks of one model, as threads. Each reads its slices of the weights and keeps its heads' pages
and states. The reduce hook sums their results, twice a layer."""

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import pytest
import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.families.qwen3_5.cuts import Qwen35Cuts
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.weights.shard import ExpertCut, Shard
from tests.harness.goldens import (
    MODELS,
    QUANTISED,
    Golden,
    Request,
    Workspace,
    golden,
    load_model,
    reference_dir,
)
from tests.harness.qwen35 import load_config, load_weights
from tests.harness.waiting import HANG_SECONDS

# Ranks as threads of one process: their exchange, and a model for each.
Result = TypeVar("Result")


class ThreadExchange:
    """The collectives of ranks as threads. calls: number of sums by rank."""

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
        """Report a failed rank: the others need not wait."""
        self._barrier.abort()


def rank_models(
    name: str,
    ranks: int,
    experts: ExpertCut = ExpertCut.BY_WIDTH,
    draft_layers: int = 0,
    dtype: torch.dtype = torch.float32,
) -> tuple[ThreadExchange, list[Qwen35Model]]:
    """Return models of a golden, each with its own slices of the files."""
    folder = reference_dir(name)
    config = replace(load_config(folder), draft_layers=draft_layers)
    exchange = ThreadExchange(ranks)
    models = []
    for rank in range(ranks):
        shard = Shard(rank, ranks, experts)
        weights = load_weights(folder, config, dtype, shard=shard)
        part = Qwen35Cuts(config).part(shard)
        backend = TorchBackend(part, exchange.sum_of(rank))
        models.append(Qwen35Model(part, weights, backend, exchange.gather_of(rank)))
    return exchange, models


def run_ranks(
    exchange: ThreadExchange, models: Sequence[Qwen35Model], run: Callable[[Qwen35Model], Result]
) -> list[Result]:
    """Return the results of `run` for all ranks' models, run at the same time."""

    def guarded(model: Qwen35Model) -> Result:
        try:
            return run(model)
        except BaseException:
            exchange.broken()
            raise

    with ThreadPoolExecutor(len(models)) as threads:
        return [*threads.map(guarded, models)]


STEPS = 6
PROMPT = [7, 3, 200, 41, 5, 99, 310, 12] * 9
MARK = 65
WIDTH, EXPERT = ExpertCut.BY_WIDTH, ExpertCut.BY_EXPERT


def answers(model: Qwen35Model) -> tuple[Request, list[Tensor]]:
    """Return logits after the prompt and after each greedy token, with a checkpoint inside the
    prompt."""
    workspace = Workspace(model)
    request = Request(workspace, len(PROMPT) + STEPS)
    logits = [request.forward(PROMPT, ((MARK, workspace.dirty_slot()),))]
    for _ in range(STEPS):
        logits.append(request.forward([int(logits[-1].argmax())]))
    return request, logits


CASES = [
    ("tiny-dense", 2, WIDTH),
    ("tiny-dense-d128", 2, WIDTH),
    ("tp4-dense-fp8", 4, WIDTH),
    ("moe-nvfp4-ct", 2, WIDTH),
    ("moe-nvfp4-ct", 2, EXPERT),
]


@pytest.mark.parametrize(
    ("name", "ranks", "experts"), [case for case in CASES if case[0] in MODELS + QUANTISED]
)
def test_ranks_that_add_up_in_the_hook_answer_as_one(
    name: str, ranks: int, experts: ExpertCut
) -> None:
    whole = load_model(name)
    one, expected = answers(whole)
    exchange, models = rank_models(name, ranks, experts)
    found = run_ranks(exchange, models, answers)
    assert exchange.calls == [2 * whole.config.layers * (1 + STEPS)] * ranks
    for step, want in enumerate(expected):
        first = found[0][1][step]
        assert all(torch.equal(first, logits[step]) for _, logits in found)
        torch.testing.assert_close(first, want, atol=1e-4, rtol=1e-4)
        assert int(first.argmax()) == int(want.argmax())
    # Each keeps its own heads' share of states and pages, all under the same ids.
    assert len({(tuple(other.slots), tuple(other.pages)) for other, _ in found}) == 1
    copies = max(1, ranks // whole.config.kv_heads)
    for view, heads in (("ssm", 0), ("kv", 0)):
        kept = found[::copies] if view == "kv" else found
        of_ranks = [(item.workspace.arena.views(view), ids(item, view)) for item, _ in kept]
        for layer, want in enumerate(one.workspace.arena.views(view)):
            together = torch.cat([share[layer][id] for share, id in of_ranks], heads)
            torch.testing.assert_close(together, want[ids(one, view)], atol=1e-4, rtol=1e-4)


def errors(model: Qwen35Model, case: Golden, exact: list[Tensor]) -> tuple[float, int]:
    """Return (distance, agreed) after the prompt and each token of the golden answer. distance: the
    largest difference of its logits from `exact`. agreed: the number of equal greedy choices."""
    request = Request(Workspace(model), len(case.prompt) + len(case.greedy))
    far, agreed = 0.0, 0
    runs = [case.prompt, *([token] for token in case.greedy[:-1])]
    for run, token, want in zip(runs, case.greedy, exact, strict=True):
        logits = request.forward(run)
        far = max(far, float((logits - want).abs().max()))
        agreed += int(logits.argmax()) == token
    return far, agreed


def test_two_ranks_are_as_near_in_bf16_as_one_is() -> None:
    """The bound is twice the distance of one rank's logits from float32's, and the golden's share
    of equal choices. One rank rounds at the same places, except for the sums of two parts."""
    name, case = "tiny-dense", golden("tiny-dense", "long")
    one = load_model(name)
    request = Request(Workspace(one), len(case.prompt) + len(case.greedy))
    runs = [case.prompt, *([token] for token in case.greedy[:-1])]
    exact = [request.forward(run) for run in runs]
    alone, _ = errors(load_model(name, torch.bfloat16), case, exact)
    exchange, models = rank_models(name, 2, dtype=torch.bfloat16)
    found = run_ranks(exchange, models, lambda model: errors(model, case, exact))
    assert found[0] == found[1]
    far, agreed = found[0]
    assert 0 < far <= 2 * alone, f"{far}, and {alone} of one rank"
    assert agreed >= case.tolerance["bf16_argmax_agreement_min"] * len(runs), agreed


def ids(request: Request, view: str) -> int:
    """Return the ids of the last state but one, or of the first page."""
    return request.pages[0] if view == "kv" else request.slots[0]
