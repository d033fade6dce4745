"""GDN layers without their projections: random inputs, poisoned states, and the oracle's answer."""

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from tasuki.model.backends.torch_backend import TorchBackend
from tasuki.model.config import DeltaNetConfig
from tasuki.model.forward import Batch, SequenceSlice
from tasuki.model.weights.layers import GdnWeights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tests.harness.covering import slow_behind

from .tensors import DTYPE_NAMES, close, small_config


@dataclass(frozen=True)
class Heads:
    """Key and value heads, their dimensions, and the convolution's width."""

    keys: int
    values: int
    key_dim: int
    value_dim: int
    width: int = 4

    def config(self) -> DeltaNetConfig:
        return small_config(
            ["linear_attention", "full_attention"],
            linear_num_key_heads=self.keys,
            linear_num_value_heads=self.values,
            linear_key_head_dim=self.key_dim,
            linear_value_head_dim=self.value_dim,
            linear_conv_kernel_dim=self.width,
        )


@dataclass
class GdnCase:
    """A case of one layer on one device. Slots not read by a sequence hold NaN."""

    config: DeltaNetConfig
    weights: GdnWeights
    conv: Tensor
    ssm: Tensor

    def projected(self, tokens: int) -> Tensor:
        """Return [tokens, ...] in the activations' dtype, with a row stride wider than the row."""
        width = self.weights.in_proj.shape[0]
        wide = torch.randn(tokens, width + 16, device=self.conv.device)
        return wide.to(self.weights.conv.dtype)[:, :width]

    def fill(self, slots: Sequence[int]) -> None:
        for slot in slots:
            self.conv[slot] = torch.randn_like(self.conv[slot])
            self.ssm[slot] = 0.5 * torch.randn_like(self.ssm[slot].float())


def gdn_case(
    heads: Heads,
    slots: int,
    activations: torch.dtype,
    state: torch.dtype,
    device: torch.device,
) -> GdnCase:
    torch.manual_seed(1)
    config = heads.config()
    layout = config.cache_layout("bfloat16", DTYPE_NAMES[activations], DTYPE_NAMES[state])
    arena = Arena(layout, slots, device)
    values = config.value_heads * config.value_dim
    rows = config.conv_channels + values + 2 * config.value_heads

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, device=device)

    weights = GdnWeights(
        in_proj=Matrix.of(normal(rows, 1)),
        conv=normal(config.conv_channels, config.conv_width).to(activations),
        decay_rate=-torch.empty(config.value_heads, device=device).uniform_(1, 16),
        dt_bias=torch.empty(config.value_heads, device=device).uniform_(-7, -2),
        norm=1 + 0.1 * normal(config.value_dim),
        out_proj=Matrix.of(normal(1, values)),
        number=0,
    )
    arena.views("conv")[0].fill_(torch.nan)
    arena.views("ssm")[0].fill_(torch.nan)
    return GdnCase(config, weights, arena.views("conv")[0], arena.views("ssm")[0])


@dataclass(frozen=True)
class Shape:
    """Heads, the dtypes of activations and states, and how near kernels come to the CPU path."""

    heads: Heads
    activations: torch.dtype
    state: torch.dtype
    tolerance: float

    def case(self, slots: int, device: torch.device) -> GdnCase:
        return gdn_case(self.heads, slots, self.activations, self.state, device)


STEP_SHAPES = {
    "fp32": Shape(Heads(1, 2, 64, 64), torch.float32, torch.float32, 2e-6),
    "ratio-3": Shape(Heads(2, 6, 32, 32), torch.float32, torch.float32, 2e-6),
    "bf16": Shape(Heads(1, 1, 128, 128), torch.bfloat16, torch.float32, 1e-2),
    "bf16-state": Shape(Heads(1, 2, 32, 64, width=3), torch.bfloat16, torch.bfloat16, 1e-2),
}
"""Shapes of steps and of rows with drafts."""
each_step_shape = pytest.mark.parametrize("shape", STEP_SHAPES.values(), ids=STEP_SHAPES)
some_step_shapes = pytest.mark.parametrize(
    "shape", slow_behind(2, {name: STEP_SHAPES[name] for name in reversed(STEP_SHAPES)})
)
"""Shapes for results independent of rounding; the nightly run has the others."""


@dataclass(frozen=True)
class OracleAnswer:
    """The CPU path's result of a case; its states are copies."""

    output: Tensor
    conv: Tensor
    ssm: Tensor

    def check(self, output: Tensor, case: GdnCase, tolerance: float) -> None:
        """Compare the results. NaN must equal NaN, because an unused slot stays untouched."""
        close(output, self.output, tolerance)
        close(case.conv, self.conv, tolerance)
        close(case.ssm, self.ssm, tolerance)


def oracle(case: GdnCase, projected: Tensor, slices: Sequence[SequenceSlice]) -> OracleAnswer:
    cpu = torch.device("cpu")
    fields = {
        name: field.to(cpu) if isinstance(field, Tensor | Matrix) else field
        for name, field in vars(case.weights).items()
    }
    conv, ssm = case.conv.to(cpu, copy=True), case.ssm.to(cpu, copy=True)
    operators = TorchBackend(case.config).bind(Batch.pack(slices))
    output = operators.gdn(projected.to(cpu), GdnWeights(**fields), conv, ssm)
    return OracleAnswer(output, conv, ssm)
