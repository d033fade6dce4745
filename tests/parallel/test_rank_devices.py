"""Which GPU a rank takes, and what is refused of ranks on GPUs before anything is started."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tasuki.engine.build_ranks import build_leader_parts, rank_device
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.parallel.device import rank_arenas
from tasuki.engine.parallel.device.untried import VARIABLE
from tasuki.engine.parallel.rank_process import RankProcess
from tasuki.engine.role import Role
from tasuki.transfer.transports.nvlink.cuda_ipc import HANDLE_BYTES, Export
from tasuki.utils.child_process import Job
from tests.harness.model_shapes import dense_raw, moe_raw
from tests.harness.random_checkpoint import write_random_weights


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    write_random_weights(tmp_path, dense_raw())
    return tmp_path


def nobody(jobs: Sequence[Job]) -> list[RankProcess]:
    raise AssertionError("a follower is started")


def config(model: Path = Path(), **changes: object) -> EngineConfig:
    settings = {"model": str(model), "device": "cuda", "tensor_parallel": 2}
    return EngineConfig(**(settings | changes))  # type: ignore[arg-type]


@pytest.mark.usefixtures("two_gpus")
def test_each_rank_takes_the_next_gpu_or_all_the_one_that_is_named() -> None:
    assert [rank_device(config(), rank).index for rank in (0, 1)] == [0, 1]
    assert [rank_device(config(device="cuda:1"), rank).index for rank in (0, 1)] == [1, 1]
    assert rank_device(config(device="cpu"), 1) == torch.device("cpu")


@pytest.mark.usefixtures("two_gpus")
def test_more_ranks_than_gpus_are_refused(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(EngineConfigError, match="1 GPUs are visible here"):
        build_leader_parts(config(model), start=nobody)


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize("role", [Role.PREFILL, Role.DECODE])
def test_what_ranks_on_gpus_hold_is_not_handed_over(role: Role, model: Path) -> None:
    with pytest.raises(
        EngineConfigError,
        match=r"2, and .* not handed over, as yet: serve the.*, or give --tensor-parallel 1",
    ):
        build_leader_parts(config(model), role=role, start=nobody)


@pytest.mark.usefixtures("two_gpus")
def test_quantised_weights_are_not_computed(model: Path) -> None:
    read = json.loads((model / "config.json").read_text())
    read["quantization_config"] = {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
    }
    (model / "config.json").write_text(json.dumps(read))
    with pytest.raises(
        EngineConfigError, match=r"is quantised \(fp8\), which ranks on GPUs do not"
    ):
        build_leader_parts(config(model), start=nobody)


@pytest.mark.usefixtures("two_gpus")
def test_experts_and_drafts_have_not_been_tried(model: Path, tmp_path: Path) -> None:
    with pytest.raises(EngineConfigError, match="tried with drafts, as yet: give --speculate off"):
        build_leader_parts(config(model, speculate="prediction"), start=nobody)
    experts = tmp_path / "experts"
    experts.mkdir()
    write_random_weights(experts, moe_raw())
    with pytest.raises(EngineConfigError, match="tried with experts, as yet"):
        build_leader_parts(config(experts), start=nobody)


@pytest.mark.usefixtures("two_gpus")
def test_who_tries_what_is_untried_is_warned(
    model: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "1")
    with pytest.raises(AssertionError, match="a follower is started"):
        build_leader_parts(config(model, speculate="prediction"), role=Role.DECODE, start=nobody)
    said = [record.message for record in caplog.records]
    assert len(said) == 2 and "handed over" in said[0] and "drafts" in said[1], said


class ImaginedIpc:
    """Maps what a rank exported at an address that names it."""

    opened: list[tuple[Export, int]]

    def __init__(self, device: int) -> None:
        self.opened = []

    def export(self, address: int) -> Export:
        return Export(address.to_bytes(HANDLE_BYTES, "little"), 512)

    def open(self, export: Export, size: int) -> int:
        self.opened.append((export, size))
        return 7 * int.from_bytes(export.handle, "little")


@pytest.mark.parametrize("rank", [0, 1])
def test_the_leader_alone_maps_the_others_arenas(
    rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpu = "GPU-01234567-89ab-cdef-0123-456789abcdef"
    monkeypatch.setattr(rank_arenas, "CudaIpc", ImaginedIpc)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=gpu))
    arena = torch.zeros(64, dtype=torch.uint8)
    others = [4096, 8192]

    def exchange(own: bytes) -> list[bytes]:
        found = [(a.to_bytes(HANDLE_BYTES, "little") + own[HANDLE_BYTES:]) for a in others]
        return [*found[:rank], own, *found[rank:]]

    found = rank_arenas.exchanged_arenas(exchange, rank, arena)
    assert [item.gpu for item in found] == [gpu] * 3 and {item.offset for item in found} == {512}
    addresses = [item.address for item in found]
    assert addresses.pop(rank) == arena.data_ptr()
    assert addresses == ([7 * other for other in others] if rank == 0 else [0, 0])
