"""Goldens on a GPU whose arena is so small that every beginning is loaded, from pinned memory or
from a disk where the node before kept it; memory that changes owner is filled with NaN."""

from tests.harness.kept_goldens import DiskGoldens
from tests.harness.tiered_goldens import TieredGoldens


class TestGoldensFromBelowAGpu(TieredGoldens):
    device = "cuda"


class TestGoldensFromADiskBelowAGpu(DiskGoldens):
    device = "cuda"
