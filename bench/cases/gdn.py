"""Cases of GDN decode: one layer between its input and output projections, one token a sequence."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import torch
from torch import Tensor

from tasuki.bench.measure.timing import Work
from tasuki.model.ops.gdn.decode import gdn_decode
from tasuki.model.weights.layers import GdnWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.source import RandomSource

from .case import Case, Stage, turns_to_overflow

_SHARES = {32: 0.80, 128: 0.90, 256: 0.90, 512: 0.90}
_BOTH = (64, 256)
"""Rows measured with states of both dtypes."""
_NAMES = {4: "fp32", 2: "bf16"}
_POSITION = 2048


def cases(stage: Stage) -> Iterator[Case]:
    weights = gdn_weights(stage)
    for batch in (1, 8, 32, 128, 512, *_BOTH):
        for name, alternates in (("in place", False), ("slot to slot", True)):
            if batch * (1 + alternates) <= stage.slabs:
                yield _decode(stage, weights, batch, name, alternates)
    halves = replace(stage, states="bfloat16")
    for batch in _BOTH:
        if batch <= stage.slabs:
            yield _decode(halves, weights, batch, "in place", False)


def _decode(stage: Stage, weights: GdnWeights, batch: int, name: str, alternates: bool) -> Case:
    config, arena = stage.model, stage.arena
    item = arena.views("ssm")[0].element_size()
    state = batch * config.value_heads * config.value_dim * config.key_dim * item
    conv = batch * config.conv_channels * (config.conv_width - 1) * 2
    width = config.conv_channels + config.value_heads * (config.value_dim + 2)
    activations = 2 * batch * (width + config.value_heads * config.value_dim)
    count = turns_to_overflow(2 * state)
    projected = stage.random(batch, width)
    rows, positions = stage.rows(batch), stage.ints([_POSITION] * batch)
    turns: list[Work] = []
    for turn in range(count):
        layer = turn % len(arena.views("ssm"))
        read = slots(stage, batch, turn // len(arena.views("ssm")))
        write = slots(stage, batch, turn // len(arena.views("ssm")) + 1) if alternates else read
        turns.append(
            partial(
                gdn_decode,
                projected,
                weights,
                config,
                arena.views("conv")[layer],
                arena.views("ssm")[layer],
                read,
                write,
                rows,
                positions,
            )
        )
    heads = f"{config.value_heads} value heads, {_NAMES[item]} state"
    return Case(
        f"gdn decode, {heads}, batch {batch}, {name}",
        turns,
        bytes=2 * state + 2 * conv + activations,
        captured={} if alternates or item == 2 else _fla(stage, batch, count),
        share=None if item == 2 else _SHARES.get(batch),
        ratios={"fla fused_recurrent": 1.3} if batch >= 32 else {},
    )


def slots(stage: Stage, batch: int, turn: int) -> Tensor:
    """Return the ids of `batch` consecutive state slots, [batch] int32. Each turn gets different
    slots as far as the arena allows."""
    first = turn * batch % (stage.slabs - batch + 1)
    return stage.ints(list(range(first, first + batch)))


def gdn_weights(stage: Stage) -> GdnWeights:
    """Return random GDN weights with empty projections, because the kernel does not use
    projections."""
    config, source = stage.model, RandomSource(1, stage.device)
    none = Matrix.of(torch.empty(0, device=stage.device))
    return GdnWeights(
        in_proj=none,
        conv=source.read("conv", (config.conv_channels, config.conv_width), torch.bfloat16),
        decay_rate=-source.read("A_log", (config.value_heads,), torch.float32).exp(),
        dt_bias=source.read("dt_bias", (config.value_heads,), torch.float32),
        norm=source.read("linear_attn.norm.weight", (config.value_dim,), torch.float32),
        out_proj=none,
        number=0,
    )


def _fla(stage: Stage, batch: int, count: int) -> dict[str, Sequence[Work]]:
    """Return a call of fla's recurrent step alone, without convolution, gates or state slots, if
    fla is installed."""
    step = fla_rule(stage, "fused_recurrent_gated_delta_rule", batch, 1, torch.float32)
    if step is None:
        return {}
    heads, dim = stage.model.value_heads, stage.model.key_dim
    states = torch.randn(count, batch, heads, dim, dim, device=stage.device)
    return {"fla fused_recurrent": [partial(step, initial_state=state) for state in states]}


def fla_rule(
    stage: Stage, name: str, count: int, tokens: int, beta_dtype: torch.dtype
) -> Callable[..., object] | None:
    """Return a call of fla's delta rule `name` on random inputs: `count` sequences of `tokens`
    each. The caller adds the argument initial_state. Returns None if fla is not installed."""
    if find_spec("fla") is None:
        return None
    rule = getattr(importlib.import_module("fla.ops.gated_delta_rule"), name)
    heads, dim = stage.model.value_heads, stage.model.key_dim
    q, k, v = (stage.random(count, tokens, heads, dim) for _ in range(3))
    g = -torch.rand(count, tokens, heads, device=stage.device)
    beta = torch.rand(count, tokens, heads, device=stage.device, dtype=beta_dtype)
    return partial(
        rule, q, k, v, g, beta=beta, output_final_state=True, use_qk_l2norm_in_kernel=True
    )
