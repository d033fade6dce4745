"""An early step on a GPU given up half-way: after its end its kernels have ended too."""

import threading
from typing import Any

import pytest
import torch

from tasuki.engine.config import EngineConfig
from tasuki.engine.roles.early_steps import EarlyStep, EarlySteps
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.forward import SequenceSlice
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.transfer.receiving.incoming_transfer import LayerBarrier
from tests.gpu.shapes import parts_of

LONG_CYCLES = 2_000_000_000
"""About a second of any GPU."""


class Opened(LayerBarrier):
    """A barrier that opens a number of layers and then no more."""

    def __init__(self, layers: int) -> None:
        self._layers = layers

    def wait(self, layer: int) -> bool:
        return layer < self._layers

    def close(self) -> None:
        self._layers = 0


class Slow(Qwen35Model):
    """Keeps its stream busy long after its calls have returned, and only then writes `written`."""

    written: torch.Tensor
    breaks = False

    def layers(self, tokens: Any, operators: Any, arena: Any, hooks: Any, *more: Any) -> Any:
        torch.cuda._sleep(LONG_CYCLES)  # type: ignore[no-untyped-call]
        self.written.fill_(1)
        return super().layers(tokens, operators, arena, hooks, *more)

    def head(self, *args: Any) -> torch.Tensor:
        if self.breaks:
            raise RuntimeError("broken on purpose")
        return super().head(*args)


@pytest.mark.parametrize("how", ["shut", "broke"])
def test_a_step_that_is_given_up_has_ended_once_its_kernels_have(how: str) -> None:
    # Here and not above: without a GPU other tests choose Triton's interpreter before its import.
    from tasuki.model.backends.triton_backend import TritonBackend

    config = EngineConfig(model="dense", dtype="float32", device="cuda", arena_mib=64)
    parts = parts_of("dense", config)
    device = parts.arena.bytes.device
    backend = TritonBackend(parts.model.config, parts.model.weights.dtype, device)
    model = Slow(parts.model.config, parts.model.weights, backend)
    model.written = torch.zeros(1, device=device)
    model.breaks = how == "broke"
    layers = parts.model.config.layers
    told = threading.Event()
    steps = EarlySteps(model, parts.arena, parts.grammars, told.set, backend.prepare)
    steps.prepare()
    torch.cuda.synchronize()
    page = parts.arena.layout.blocks_per_slab
    step = EarlyStep(
        Opened(layers if how == "broke" else 2),
        SequenceSlice([5], 3, [page], 2, 3),
        SamplingParams(),
    )
    assert steps.begin(step)
    assert told.wait(60)
    # This stream does not wait: it sees the writes so far.
    with torch.cuda.stream(torch.cuda.Stream(device)):  # type: ignore[no-untyped-call]
        seen = float(model.written.item())
    assert step.ended and step.sampled is None
    assert seen == 1.0, "ended was told while its kernels still ran"
    steps.close()
