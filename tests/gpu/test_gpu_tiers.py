"""Goldens on a GPU whose arena is so small that every beginning is loaded from pinned memory;
memory that changes owner is filled with NaN."""

from tests.harness.tiered_goldens import TieredGoldens


class TestGoldensFromBelowAGpu(TieredGoldens):
    device = "cuda"
