"""Sizes left open by a config: from a GPU's free memory, a given figure here, and on a CPU."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tasuki.cli import main as cli
from tasuki.engine.assembly.memory_plan import MIB, MemoryPlan, arena_slabs, max_batch
from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.model.config import DeltaNetConfig
from tasuki.pycache.layout import CacheLayout
from tasuki.server.daemon.serve_config import GPUS
from tasuki.utils.options import Auto
from tests.harness.engines import TINY, Lone, engine_config, prompt, tiny_parts
from tests.harness.qwen35 import config_of, published_or_folder

NINE = published_or_folder("9b")
H100 = GPUS["h100"] * MIB
ROLES = pytest.mark.parametrize("role", list(Role))


def layout_of(model: DeltaNetConfig, config: EngineConfig) -> CacheLayout:
    return model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)


@ROLES
@pytest.mark.parametrize("model", ["9b", "27b", "35b-a3b"])
@pytest.mark.parametrize("chunk", [512, 8192])
def test_an_arena_of_a_gpu_is_all_that_fits_and_not_a_slab_more(
    model: str, role: Role, chunk: int
) -> None:
    shape = published_or_folder(model)
    config = EngineConfig(device="cuda", prefill_chunk_tokens=chunk)
    slabs = arena_slabs(config, shape, role, H100)
    found = MemoryPlan.of(shape, config, H100, role)
    assert slabs == found.slabs(found.arena) == found.slabs(found.fitting_arena)
    slab = found.layout.slab_bytes
    transfer_id = H100 - found.beside
    assert slabs * slab <= 0.98 * transfer_id < (slabs + 1) * slab + 16 * MIB
    # The same as numbers is the same plan.
    stated = EngineConfig(
        arena_mib=-(-slabs * slab // MIB),
        max_batch=found.max_batch,
        prefill_chunk_tokens=chunk,
    )
    assert MemoryPlan.of(shape, stated, H100, role) == found


@ROLES
def test_a_batch_of_a_gpu_has_working_slots_and_a_few_pages_each_and_256_at_most(
    role: Role,
) -> None:
    config = EngineConfig(device="cuda")
    layout = layout_of(NINE, config)
    pages = layout.pages_per_slab
    of_one = role.working_slots * pages + 4
    assert max_batch(config, layout, role, 100, on_gpu=True) == 100 * pages // of_one
    assert max_batch(config, layout, role, 100_000, on_gpu=True) == 256
    assert max_batch(config, layout, role, 1, on_gpu=True) == 1
    assert MemoryPlan.of(NINE, config, H100, role).max_batch == 256


@ROLES
def test_stated_numbers_are_taken_as_they_are(role: Role) -> None:
    config = EngineConfig(device="cuda", arena_mib=1000, max_batch=500)
    layout = layout_of(NINE, config)
    slabs = 1000 * MIB // layout.slab_bytes
    for free in (None, H100, 1):
        assert arena_slabs(config, NINE, role, free) == slabs
    for on_gpu in (False, True):
        assert max_batch(config, layout, role, slabs, on_gpu=on_gpu) == 500


@ROLES
def test_on_a_cpu_the_sizes_are_numbers(role: Role) -> None:
    config = EngineConfig(dtype="float32")
    tiny = config_of(TINY)
    layout = layout_of(tiny, config)
    assert arena_slabs(config, tiny, role, None) == 512 * MIB // layout.slab_bytes
    assert max_batch(config, layout, role, 1000, on_gpu=False) == 64


def test_less_room_makes_a_smaller_arena_and_a_smaller_batch() -> None:
    config = EngineConfig(device="cuda")
    plans = [
        MemoryPlan.of(NINE, config, free * MIB, Role.FUSED) for free in range(22_000, 60_000, 2_500)
    ]
    for smaller, larger in pairwise(plans):
        assert smaller.arena <= larger.arena and smaller.max_batch <= larger.max_batch
        assert smaller.graphs <= larger.graphs and smaller.gathered <= larger.gathered
    assert plans[0].max_batch < 32 and plans[-1].max_batch == 256


@pytest.mark.parametrize("free", [0, 1000, 17_079, 18_900])
def test_a_gpu_without_room_for_an_arena_is_refused_with_the_numbers(free: int) -> None:
    with pytest.raises(EngineConfigError) as caught:
        arena_slabs(EngineConfig(device="cuda"), NINE, Role.FUSED, free * MIB)
    told = str(caught.value)
    assert f"arena_mib auto: {free} MiB of the GPU are free" in told and "; " in told


def test_an_engine_runs_as_many_requests_as_its_sizes_say(tmp_path: Path) -> None:
    for given, expected in ((Auto.AUTO, 64), (3, 3)):
        lone = Lone(engine_config(tmp_path, max_batch=given), parts=tiny_parts())
        assert lone.engine.max_batch == expected
        assert len(lone.ask("a", prompt(70), 3)) == 3


def test_the_dry_run_prints_what_auto_comes_to(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["serve", "--dry-run", "--model", "9b", "--gpu", "h100"]
    assert cli.main(flags) == 0
    shown = capsys.readouterr().out
    # A published name has its tower in the plan too.
    config = EngineConfig("9b")
    found = MemoryPlan.of(replace(NINE, draft_layers=1), config, H100, Role.FUSED)
    (arena,) = (line for line in shown.splitlines() if line.startswith("arena auto"))
    assert f"{found.arena / MIB:.0f} MiB  {found.slabs(found.arena)} slabs" in arena
    assert "of up to 256 requests, auto" in shown and "the plan fits" in shown
    assert cli.main([*flags, "--arena-mib", "auto", "--max-batch=auto"]) == 0
    assert capsys.readouterr().out == shown
    assert cli.main([*flags, "--arena-mib", "9000", "--max-batch", "8"]) == 0
    shown = capsys.readouterr().out
    assert "arena as configured" in shown and "of up to 8 requests, as configured" in shown
    assert cli.main(["serve", "--dry-run", "--model", "397b-a17b", "--gpu", "h100"]) == 0
    assert "the weights and workspace alone fill this GPU" in capsys.readouterr().out
