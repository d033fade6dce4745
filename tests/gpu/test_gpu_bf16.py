"""bf16 on the GPU against the CPU oracle in the same dtype: logits within a stated divergence,
whichever way the tokens came in.

KL is of the GPU's next-token distribution from the CPU's, in nats. For scale: on the CPU alone, the
chunked prompt's logits diverge from the whole one's by 0.0001 nats (dense) and by 0.0074 (mixture
of experts, where rounding can change who is chosen).
"""

from collections.abc import Iterator

import pytest
import torch

from tasuki.engine.config import EngineConfig
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.pycache.arena import copy_slot
from tests.gpu.shapes import CONFIGS, VOCAB, parts_of

BOUND = 0.02
LENGTH = 330
TOKENS = torch.randint(0, VOCAB, (LENGTH,), generator=torch.Generator().manual_seed(3)).tolist()


class Way:
    """One sequence over a poisoned arena of one device."""

    def __init__(self, shape: str, device: str) -> None:
        config = EngineConfig(model=shape, dtype="bfloat16", device=device, arena_mib=128)
        self.parts = parts_of(shape, config)
        arena = self.parts.arena
        arena.bytes.fill_(0xFF)
        arena.bytes[: arena.layout.slot_bytes].zero_()
        layout = arena.layout
        self.pages = [(3 + page) * layout.blocks_per_slab for page in range(-(-LENGTH // 64))]
        self.slot = 0
        self.done = 0

    def forward(self, count: int, mark: int | None = None) -> torch.Tensor:
        """Logits [vocab] float32 on the host after `count` more tokens."""
        tokens = TOKENS[self.done : self.done + count]
        marks = () if mark is None else ((mark, 2),)
        item = SequenceSlice(tokens, self.done, self.pages, self.slot, 1 - self.slot, marks)
        self.done += count
        self.slot = 1 - self.slot
        with torch.inference_mode():
            logits = self.parts.model.forward(Batch.pack([item]), self.parts.arena, NullHooks())
        return logits[0].float().cpu()

    def resume(self, at: int) -> None:
        """From the checkpoint that a forward marked."""
        copy_slot(self.parts.arena, 2, 0)
        self.slot, self.done = 0, at


def whole(way: Way) -> torch.Tensor:
    return way.forward(LENGTH)


def chunked(way: Way) -> torch.Tensor:
    for count in (64, 128, 1, 63):
        way.forward(count)
    return way.forward(LENGTH - way.done)


def resumed(way: Way) -> torch.Tensor:
    way.forward(LENGTH - 10, mark=192)
    way.resume(192)
    return way.forward(LENGTH - 192)


def stepped(way: Way) -> torch.Tensor:
    way.forward(LENGTH - 8)
    for _ in range(7):
        way.forward(1)
    return way.forward(1)


def divergence(got: torch.Tensor, want: torch.Tensor) -> float:
    p, q = want.double().log_softmax(-1), got.double().log_softmax(-1)
    return float((p.exp() * (p - q)).sum())


@pytest.fixture(params=sorted(CONFIGS))
def shape(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("way", [whole, chunked, resumed, stepped])
def test_logits_diverge_no_more_than_roundings_do(shape: str, way: object) -> None:
    want = whole(Way(shape, "cpu"))
    got = way(Way(shape, "cuda"))  # type: ignore[operator]
    found = divergence(got, want)
    assert found <= BOUND, f"{found:.5f} nats, allowed {BOUND}"
