"""bf16 on the GPU compared with the CPU reference in the same dtype. Logits stay within a stated
divergence for every way of forwarding the tokens.

KL is of the GPU's next-token distribution from the CPU's, in nats. For scale, on the CPU alone the
chunked prompt's logits diverge from the whole one's by 0.0001 nats (dense). With a mixture of
experts it is 0.0074, because rounding can change the chosen experts.
"""

from collections.abc import Iterator

import pytest
import torch

from tasuki.engine.config import EngineConfig
from tests.gpu.one_sequence import LENGTH, OneSequence, divergence
from tests.gpu.shapes import CONFIGS, parts_of

BOUND = 0.02


def sequence(shape: str, device: str) -> OneSequence:
    config = EngineConfig(model=shape, dtype="bfloat16", device=device, arena_mib=128)
    return OneSequence(parts_of(shape, config))


def whole(way: OneSequence) -> torch.Tensor:
    return way.forward(LENGTH)


def chunked(way: OneSequence) -> torch.Tensor:
    for count in (64, 128, 1, 63):
        way.forward(count)
    return way.forward(LENGTH - way.done)


def resumed(way: OneSequence) -> torch.Tensor:
    way.forward(LENGTH - 10, mark=192)
    way.resume(192)
    return way.forward(LENGTH - 192)


def stepped(way: OneSequence) -> torch.Tensor:
    way.forward(LENGTH - 8)
    for _ in range(7):
        way.forward(1)
    return way.forward(1)


@pytest.fixture(params=sorted(CONFIGS))
def shape(request: pytest.FixtureRequest) -> Iterator[str]:
    yield request.param


@pytest.mark.parametrize("way", [whole, chunked, resumed, stepped])
def test_logits_diverge_no_more_than_roundings_do(shape: str, way: object) -> None:
    want = whole(sequence(shape, "cpu"))
    got = way(sequence(shape, "cuda"))  # type: ignore[operator]
    found = divergence(got, want)
    assert found <= BOUND, f"{found:.5f} nats, allowed {BOUND}"
