"""Goldens on a GPU with so small an arena that every prefix is loaded, from pinned memory or from
an earlier node's disk. Memory with a new owner is filled with NaN."""

from tests.harness.kept_goldens import DiskGoldens
from tests.harness.tiered_goldens import TieredGoldens


class TestGoldensFromBelowAGpu(TieredGoldens):
    device = "cuda"


class TestGoldensFromADiskBelowAGpu(DiskGoldens):
    device = "cuda"
