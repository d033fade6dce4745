"""Goldens on a GPU whose arena is so small that every beginning is loaded: from pinned memory, from
a disk where the node before kept it, from a store where another node put it; memory that changes
owner is filled with NaN."""

from collections.abc import Iterator

import pytest

from tests.harness.kept_goldens import DiskGoldens, RemoteGoldens
from tests.harness.s3_server import S3Server, running_s3
from tests.harness.tiered_goldens import TieredGoldens


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    with running_s3(tmp_path_factory.mktemp("s3")) as server:
        yield server


class TestGoldensFromBelowAGpu(TieredGoldens):
    device = "cuda"


class TestGoldensFromADiskBelowAGpu(DiskGoldens):
    device = "cuda"


class TestGoldensOfAnotherGpuNode(RemoteGoldens):
    device = "cuda"
