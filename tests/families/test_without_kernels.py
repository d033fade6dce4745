"""A family without kernels refuses a GPU by its name, and its plan is for a CPU."""

from pathlib import Path

import pytest
import torch

from tasuki.engine.assembly.parts import build_parts
from tasuki.engine.assembly.ranks import build_leader_parts
from tasuki.engine.config import EngineConfig
from tasuki.model.families import loading, registry
from tasuki.model.families.family import NoKernels
from tasuki.model.families.qwen3_5.family import Qwen35Family
from tasuki.server.daemon.dry_run import dry_run
from tasuki.server.daemon.serve_config import DryRunConfig
from tests.harness.random_checkpoint import CONFIG, write_random_weights

REFUSAL = "Qwen3.5 has no kernels for cuda, as yet: give --device cpu"


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Qwen35Family, "has_kernels", False)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_random_weights(tmp_path / "model", CONFIG)
    return tmp_path / "model"


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_node_on_a_gpu_is_refused(folder: Path, ranks: int, device: str) -> None:
    config = EngineConfig(model=str(folder), device=device, tensor_parallel=ranks)
    with pytest.raises(NoKernels, match=REFUSAL):
        build_parts(config) if ranks == 1 else build_leader_parts(config)


def test_weights_are_not_loaded_on_a_gpu(folder: Path) -> None:
    config = registry.load_config(folder)
    with pytest.raises(NoKernels, match=REFUSAL):
        loading.load_weights(folder, config, torch.float32, "cuda")


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_dry_run_plans_for_a_cpu(folder: Path, ranks: int) -> None:
    config = EngineConfig(model=str(folder), tensor_parallel=ranks, arena_mib=64)
    text = dry_run(config, DryRunConfig(gpu="h200"))
    head, weights, arena, slab, *layers = text.splitlines()
    assert layers and all("page" in line or "slot" in line for line in layers), text
    assert head == "Qwen3.5 has no kernels for GPUs, as yet: a plan for --device cpu"
    assert weights.startswith("weights ") and "one state slot of" in slab
    assert arena.startswith("arena as configured") and "slots or" in arena
