"""Two ranks of one model, as threads: each reads its slices of the weights and keeps its heads'
pages and states; the reduce hook adds up what they computed, twice a layer."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from tasuki.model.backends.reduce import Reduce
from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.config import DenseShape, ModelConfig
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.layers import assemble
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.part import WHOLE, Part
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.source import TensorSource
from tests.harness.goldens import QUANTISED, Request, Workspace, load_model, reference_dir

RANKS = 2
STEPS = 6
PROMPT = [7, 3, 200, 41, 5, 99, 310, 12] * 9
MARK = 65


def of_one_rank(config: ModelConfig) -> ModelConfig:
    shape = config.feed_forward
    halved = replace(shape, intermediate=shape.intermediate // RANKS)
    if not isinstance(halved, DenseShape):
        halved = replace(halved, shared_intermediate=halved.shared_intermediate // RANKS)
    return replace(
        config,
        query_heads=config.query_heads // RANKS,
        kv_heads=config.kv_heads // RANKS,
        key_heads=config.key_heads // RANKS,
        value_heads=config.value_heads // RANKS,
        feed_forward=halved,
    )


@dataclass(frozen=True)
class RankSource:
    """One rank's share of every tensor. config: of the whole model."""

    source: TensorSource
    config: ModelConfig
    rank: int

    def has(self, name: str) -> bool:
        return self.source.has(name)

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """shape: of the share. Segments of a fused tensor are cut each by itself."""
        assert part == WHOLE
        whole, dim, parts = self._parts(name, shape)
        return torch.cat([self.source.read(name, whole, dtype, own) for own in parts], dim)

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        assert part == WHOLE
        whole, _, parts = self._parts(name, shape)
        return Matrix.fused([self.source.matrix(name, whole, dtype, own) for own in parts])

    def _parts(self, name: str, shape: tuple[int, ...]) -> tuple[tuple[int, ...], int, list[Part]]:
        """(Shape of the whole, dimension that ranks share, parts of it that are this rank's.)"""
        cut = self._cut(name, shape)
        if cut is None:
            return shape, 0, [WHOLE]
        dim, segments = cut
        parts, start = [], 0
        for size in segments:
            first = start + self.rank * (size // RANKS)
            parts.append((*(slice(None),) * dim, slice(first, first + size // RANKS)))
            start += size
        return (*shape[:dim], sum(segments), *shape[dim + 1 :]), dim, parts

    def _cut(self, name: str, shape: tuple[int, ...]) -> tuple[int, list[int]] | None:
        """(dimension that ranks share, sizes of the segments along it); None: all have all."""
        parts = name.removesuffix(".weight").split(".")
        owner, leaf = parts[-2] if len(parts) > 1 else "", parts[-1]
        config = self.config
        keys = config.key_heads * config.key_dim
        if leaf in ("in_proj_qkv", "conv1d"):
            return 0, [keys, keys, config.value_heads * config.value_dim]
        if leaf == "gate_up_proj":
            return 1, [shape[1] // 2 * RANKS] * 2
        rows = "in_proj_z in_proj_b in_proj_a A_log dt_bias q_proj k_proj v_proj gate_proj up_proj"
        if leaf in rows.split():
            return 0, [shape[0] * RANKS]
        if leaf in ("out_proj", "o_proj", "down_proj"):
            return len(shape) - 1, [shape[-1] * RANKS]
        assert owner != "experts", name
        return None


class Sums:
    """The collective of ranks that are threads."""

    def __init__(self) -> None:
        self._partials: list[Tensor | None] = [None] * RANKS
        self._barrier = threading.Barrier(RANKS, timeout=60)
        self.calls = [0] * RANKS

    def of(self, rank: int) -> Reduce:
        def reduce(partial: Tensor) -> Tensor:
            self.calls[rank] += 1
            self._partials[rank] = partial
            self._barrier.wait()
            total = sum(item for item in self._partials if item is not None)
            self._barrier.wait()
            assert isinstance(total, Tensor)
            return total

        return reduce


def answers(model: Qwen35Model) -> tuple[Request, list[Tensor]]:
    """Logits after the prompt and after each greedy token, with a checkpoint inside the prompt."""
    workspace = Workspace(model)
    request = Request(workspace, len(PROMPT) + STEPS)
    logits = [request.forward(PROMPT, ((MARK, workspace.dirty_slot()),))]
    for _ in range(STEPS):
        logits.append(request.forward([int(logits[-1].argmax())]))
    return request, logits


@pytest.mark.parametrize(
    "name", ["tiny-dense", "tiny-moe", *(name for name in QUANTISED if name == "tp4-dense-fp8")]
)
def test_two_ranks_that_add_up_in_the_hook_answer_as_one(name: str) -> None:
    whole = load_model(name)
    one, expected = answers(whole)
    config, sums = of_one_rank(whole.config), Sums()

    def run(rank: int) -> tuple[Request, list[Tensor]]:
        with Checkpoint(reference_dir(name)) as files:
            source = RankSource(files, whole.config, rank)
            weights = assemble(config, source, torch.float32)
        return answers(Qwen35Model(config, weights, TorchBackend(config, sums.of(rank))))

    with ThreadPoolExecutor(RANKS) as threads:
        (first, got), (second, again) = threads.map(run, range(RANKS))
    assert sums.calls == [2 * whole.config.layers * (1 + STEPS)] * RANKS
    for want, left, right in zip(expected, got, again, strict=True):
        assert torch.equal(left, right)
        torch.testing.assert_close(left, want, atol=1e-4, rtol=1e-4)
        assert int(left.argmax()) == int(want.argmax())
    # Each keeps its own heads' share of states and pages, under the same ids.
    assert (first.slots, first.pages) == (second.slots, second.pages) == (one.slots, one.pages)
    for view, heads, id in (("ssm", 0, one.slots[0]), ("kv", 0, one.pages[0])):
        arenas = [request.workspace.arena for request in (one, first, second)]
        for want, *shares in zip(*(getattr(arena, view) for arena in arenas), strict=True):
            together = torch.cat([share[id] for share in shares], heads)
            torch.testing.assert_close(together, want[id], atol=1e-4, rtol=1e-4)
