"""The engine on the GPU in float32: equal tokens however the work is cut, batched or cached.

The oracle is the same model on the CPU, one request at a time.
"""

from dataclasses import dataclass
from functools import cache

import pytest

from tasuki.engine.config import EngineConfig
from tests.gpu.shapes import CONFIGS, VOCAB, parts_of
from tests.harness.engine_cuts import EngineCuts
from tests.harness.engines import Lone


@cache
def engine_of(shape: str, device: str, chunk: int, max_batch: int) -> Lone:
    config = EngineConfig(
        model=shape,
        dtype="float32",
        device=device,
        arena_mib=512,
        prefill_chunk_tokens=chunk,
        max_batch=max_batch,
    )
    # Neither chunks nor batches change the arena, so engines of one device share parts.
    shared = EngineConfig("", dtype="float32", device=device, arena_mib=512)
    return Lone(config, parts=parts_of(shape, shared))


@dataclass(frozen=True)
class GpuEngines:
    shape: str
    vocabulary: int = VOCAB

    def cold(self, chunk: int = 512, max_batch: int = 64, device: str = "cuda") -> Lone:
        engine = engine_of(self.shape, device, chunk, max_batch)
        engine.flush()
        return engine

    def oracle(self) -> Lone:
        return self.cold(device="cpu")


@pytest.fixture(params=sorted(CONFIGS))
def engines(request: pytest.FixtureRequest) -> GpuEngines:
    return GpuEngines(request.param)


class TestCutsOnTheGpu(EngineCuts):
    pass
