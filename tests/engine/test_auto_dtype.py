"""The dtype chosen by default."""

from pathlib import Path

import pytest

from tasuki.engine import config as engine_config
from tasuki.engine.assembly.memory_plan import MIB, MemoryPlan
from tasuki.engine.config import EngineConfig, EngineConfigError, Role
from tasuki.engine.tiers.disk.disk_memory import disk_memory
from tasuki.engine.tiers.store import contract_digest, folder_of
from tasuki.pycache.layout import CacheLayout
from tasuki.server.daemon.startup import log_loading
from tasuki.transfer.protocol.contract import Contract, ContractMismatch, diff
from tasuki.utils.system import has_bf16_units
from tests.harness.model_shapes import dense_raw
from tests.harness.qwen35 import config_of, published_or_folder

X86 = "processor\t: 0\nvendor_id\t: AuthenticAMD\nflags\t\t: fpu vme {units} avx2\nbugs\t\t:\n"
ARM = "processor\t: 0\nBogoMIPS\t: 50.00\nFeatures\t: fp asimd {units} sve\n"


@pytest.mark.parametrize(
    ("form", "units", "has"),
    [
        (X86, "avx512f avx512_bf16", True),
        (X86, "amx_bf16 amx_tile", True),
        (X86, "avx512f avx512vl amx_tile", False),
        (ARM, "bf16 i8mm", True),
        (ARM, "i8mm ebf16x", False),
        ("processor\t: 0\n", "", False),
    ],
)
def test_units_are_read_from_what_the_system_says(
    tmp_path: Path, form: str, units: str, has: bool
) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(form.format(units=units))
    assert has_bf16_units(file) is has
    assert not has_bf16_units(tmp_path / "none")


@pytest.fixture(params=[True, False], ids=["with units", "without"])
def units(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    monkeypatch.setattr(engine_config, "has_bf16_units", lambda: request.param)
    return bool(request.param)


def test_auto_follows_the_cpu_and_a_given_dtype_does_not(units: bool) -> None:
    chosen = "bfloat16" if units else "float32"
    config = EngineConfig(model="m")
    assert (config.compute_dtype, config.stored_kv) == (chosen, chosen)
    assert EngineConfig(kv_dtype="bf16").stored_kv == "bfloat16"
    for dtype in ("float32", "bfloat16"):
        assert EngineConfig(dtype=dtype).compute_dtype == dtype
    assert EngineConfig(device="cuda").compute_dtype == "bfloat16"


def test_a_plan_of_a_gpu_does_not_follow_this_cpu(units: bool) -> None:
    model = published_or_folder("9b")
    device = 80_000 * MIB
    plan = MemoryPlan.of(model, EngineConfig(), device, Role.FUSED)
    assert plan == MemoryPlan.of(model, EngineConfig(dtype="bfloat16"), device, Role.FUSED)


def test_the_choice_and_its_reason_are_logged(
    units: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        log_loading(EngineConfig(model="m"))
        log_loading(EngineConfig(model="m", dtype="float32"))
    chosen, given = caplog.messages
    if units:
        assert chosen.startswith("loading m as bfloat16 on cpu, since this CPU has bf16 units")
    else:
        assert chosen.startswith("loading m as float32 on cpu, since this CPU has no bf16 units")
    assert given == "loading m as float32 on cpu"


def _layout(config: EngineConfig) -> CacheLayout:
    model = config_of(dense_raw())
    return model.cache_layout(config.stored_kv, config.compute_dtype, config.ssm_dtype)


def _contract(config: EngineConfig) -> dict[str, str]:
    return Contract("weights", _layout(config)).flat()


def _on_disk(folder: Path, **more: str) -> EngineConfig:
    return EngineConfig(
        model="m", host_cache_gib=1, disk_cache=str(folder), disk_cache_gib=1 / 64, **more
    )


def _opened(config: EngineConfig) -> None:
    disk = disk_memory(config, _layout, lambda: _contract(config))
    assert disk is not None
    disk.close()


def test_a_warm_folder_of_another_dtype_is_refused_by_name(units: bool, tmp_path: Path) -> None:
    other = "float32" if units else "bfloat16"
    kept = _on_disk(tmp_path, dtype=other)
    _opened(kept)
    folder = tmp_path / folder_of(contract_digest(_contract(kept)))
    before = sorted((file.name, file.stat().st_mtime_ns) for file in folder.iterdir())
    auto = _on_disk(tmp_path)
    with pytest.raises(EngineConfigError, match=f"give --dtype {other} to use it") as refused:
        _opened(auto)
    assert folder.name in str(refused.value)
    assert [each.name for each in tmp_path.iterdir()] == [folder.name]
    assert sorted((file.name, file.stat().st_mtime_ns) for file in folder.iterdir()) == before
    # A named dtype adds its own folder beside the other; from then on auto uses its own.
    _opened(_on_disk(tmp_path, dtype=auto.compute_dtype))
    _opened(auto)


def test_a_warm_folder_of_the_same_dtype_is_taken(units: bool, tmp_path: Path) -> None:
    _opened(_on_disk(tmp_path, dtype="bfloat16" if units else "float32"))
    _opened(_on_disk(tmp_path))


@pytest.mark.parametrize(
    ("ours", "theirs", "fix"),
    [
        (
            {"dtype": "float32"},
            {"dtype": "bfloat16"},
            "give both nodes the same --dtype, float32 or bfloat16",
        ),
        ({"kv_dtype": "fp8"}, {"kv_dtype": "bf16"}, "give both nodes the same --kv-dtype"),
        ({"ssm_dtype": "bfloat16"}, {}, "the same --ssm-dtype, bfloat16 or float32"),
        (
            {"dtype": "float32", "ssm_dtype": "bfloat16"},
            {"dtype": "bfloat16", "ssm_dtype": "float32"},
            "give both nodes the same --dtype and --ssm-dtype",
        ),
    ],
)
def test_a_mismatch_of_dtypes_names_the_flag(
    ours: dict[str, str], theirs: dict[str, str], fix: str
) -> None:
    flags = Contract("weights", _layout(EngineConfig())).flags
    sides = (_contract(EngineConfig(**side)) for side in (ours, theirs))  # type: ignore[arg-type]
    assert str(ContractMismatch(diff(*sides), flags)).endswith(fix)
