"""Whole models on a GPU with FP8 rows in steps and prompts. In float32 they differ from the CPU's
twin by few codes, in bf16 by its roundings. Steps, tokens verified together and prompts have one
arithmetic.

KL is of the GPU's next-token distribution from that of the CPU with the same weights, in nats.
"""

from functools import cache
from statistics import median

import pytest
import torch

from tasuki.engine.assembly.parts import EngineParts, build_arena
from tasuki.engine.config import EngineConfig
from tasuki.model.families.family import Assembly
from tasuki.model.families.loading import build_model
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.forward import FP8_STEPS
from tasuki.model.quantise.checkpoint import RECIPES
from tasuki.model.quantise.source import QuantisedSource
from tasuki.model.weights.source import RandomSource
from tasuki.transfer.chunks.chunk import StepCounter
from tests.gpu.one_sequence import LENGTH, TOKENS, OneSequence, divergence
from tests.gpu.test_gpu_fp8 import SHAPES
from tests.harness.engines import Lone, submit

BOUNDS = {"float32": 0.05, "bfloat16": 0.5}
"""A random model's logits spread widely, and a last bit may be the next code."""
each_shape = pytest.mark.parametrize("shape", SHAPES)
each_dtype = pytest.mark.parametrize(("dtype", "bound"), BOUNDS.items())


def config_of(dtype: str, device: str) -> EngineConfig:
    return EngineConfig(
        model="random", dtype=dtype, device=device, arena_mib=128, step_activations="fp8"
    )


@cache
def parts_of(shape: str, dtype: str, device: str) -> EngineParts:
    """Return parts with the same codes on every device."""
    model, on = SHAPES[shape], torch.device(device)
    source = QuantisedSource(RandomSource(3), RECIPES["fp8"])
    weights = assemble(model, source, getattr(torch, dtype), on)
    built = build_model(model, weights, Assembly(activations=FP8_STEPS))
    return EngineParts(
        model, built, build_arena(config_of(dtype, device), model, on), StepCounter()
    )


@each_shape
@each_dtype
def test_the_cpu_has_the_same_arithmetic(shape: str, dtype: str, bound: float) -> None:
    want = OneSequence(parts_of(shape, dtype, "cpu")).forward(LENGTH)
    for answer in (False, True):
        got = OneSequence(parts_of(shape, dtype, "cuda")).forward(LENGTH, answer=answer)
        assert divergence(got, want) <= bound


@each_shape
@each_dtype
def test_steps_verified_tokens_and_prompts_are_alike(shape: str, dtype: str, bound: float) -> None:
    parts, found = parts_of(shape, dtype, "cuda"), []
    for count in (2, 4, 9):
        singles = OneSequence(parts)
        singles.forward(130)
        for _ in range(count - 1):
            singles.forward(1, answer=True)
        want = singles.forward(1, answer=True)
        for answer in (False, True):
            together = OneSequence(parts)
            together.forward(130)
            found.append(divergence(together.forward(count, answer=answer), want))
    assert median(found) <= bound, found


@each_shape
def test_graphs_draw_what_single_requests_do(shape: str) -> None:
    """Decode graphs of several sizes mostly give the first tokens of an engine with one request."""
    parts = parts_of(shape, "bfloat16", "cuda")
    lone = Lone(config_of("bfloat16", "cuda"), parts=parts)
    prompts = {str(n): TOKENS[n : n + 40 + 9 * n] for n in range(6)}
    alone = {name: lone.ask(f"a{name}", tokens, 4) for name, tokens in prompts.items()}
    lone.flush()
    for name, tokens in prompts.items():
        lone.post(submit(name, tokens, 4))
    lone.run()
    same = sum(lone.tokens(name)[0] == alone[name][0] for name in prompts)
    assert same >= 4, f"{same} of {len(prompts)}"
