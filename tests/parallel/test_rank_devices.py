"""The GPU of each rank, and the settings of ranks on GPUs rejected before anything starts."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tasuki.engine.assembly.ranks import build_leader_parts, rank_device
from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.parallel import peer_collectives
from tasuki.engine.parallel.ranks import RankProcess
from tasuki.transfer.transports.nvlink.cuda_ipc import HANDLE_BYTES, Export
from tasuki.utils.child_process import Job
from tests.harness.model_shapes import dense_raw
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


class ImaginedIpc:
    """A simulated IPC that maps a rank's export at an address derived from it."""

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
    monkeypatch.setattr(peer_collectives, "CudaIpc", ImaginedIpc)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: SimpleNamespace(uuid=gpu))
    arena = torch.zeros(64, dtype=torch.uint8)
    others = [4096, 8192]

    def exchange(own: bytes) -> list[bytes]:
        found = [(a.to_bytes(HANDLE_BYTES, "little") + own[HANDLE_BYTES:]) for a in others]
        return [*found[:rank], own, *found[rank:]]

    found = peer_collectives.exchanged_arenas(exchange, rank, arena)
    assert [item.gpu for item in found] == [gpu] * 3 and {item.offset for item in found} == {512}
    addresses = [item.address for item in found]
    assert addresses.pop(rank) == arena.data_ptr()
    assert addresses == ([7 * other for other in others] if rank == 0 else [0, 0])
