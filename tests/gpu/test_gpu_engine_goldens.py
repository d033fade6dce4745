"""The engine's goldens on the GPU: prompts run through the prefill kernels, answers through decode
graphs. Memory with a new owner is filled with NaN."""

from tests.harness.engine_goldens import EngineGoldens


class TestGoldensOnTheGpu(EngineGoldens):
    device = "cuda"
