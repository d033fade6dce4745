"""The weights of a block drafter, from the files of its folder.

Owns the published names and the fused shapes. Immutable after reading, so free to share between
threads. Every stored tensor must be read: an unread one belongs to another layout.
"""

import logging
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from tasuki.model.costs import ShapesOnly
from tasuki.model.drafter_shape import DrafterShape
from tasuki.model.weights.layers import MlpWeights, laid_out, tensors
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.safetensors_folder import Checkpoint
from tasuki.model.weights.source import TensorSource

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class BlockLayerWeights:
    """Weights of a drafter's layer. mixer_norm, mlp_norm: [hidden] fp32. q_proj [query_heads *
    head_dim, hidden]. kv_proj: [k | v rows, hidden], of context and of block alike. q_norm, k_norm:
    [head_dim] fp32. out_proj [hidden, query_heads * head_dim]."""

    mixer_norm: Tensor
    q_proj: Matrix
    kv_proj: Matrix
    q_norm: Tensor
    k_norm: Tensor
    out_proj: Matrix
    mlp_norm: Tensor
    mlp: MlpWeights


@dataclass(frozen=True)
class DrafterWeights:
    """Weights of a block drafter. fc [hidden, target layers * hidden]: makes a token's context row
    from its streams, side by side. context_norm, norm [hidden] fp32: of context rows, and of the
    last layer's output."""

    fc: Matrix
    context_norm: Tensor
    layers: tuple[BlockLayerWeights, ...]
    norm: Tensor

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in tensors(self))


def load_drafter(folder: Path, shape: DrafterShape, dtype: torch.dtype) -> DrafterWeights:
    """Return the weights in a drafter's folder, plain ones converted to `dtype`. Raises
    WeightsError, ModelConfigError."""
    begun = time.monotonic()
    with Checkpoint(folder, prefix="") as source:
        weights = assemble(shape, source, dtype)
        source.check_all_read()
        count = len(source)
    taken, size = time.monotonic() - begun, weights.nbytes / 2**30
    log.info("block drafter: %d tensors, %.2f GiB, in %.1f s", count, size, taken)
    return weights


def drafter_bytes(shape: DrafterShape, dtype: torch.dtype) -> int:
    """Return the bytes of a drafter's weights in `dtype`, without reading any."""
    return assemble(shape, ShapesOnly(), dtype).nbytes


def assemble(shape: DrafterShape, source: TensorSource, dtype: torch.dtype) -> DrafterWeights:
    """Read every tensor of the drafter from the source. Raises WeightsError."""
    return _Assembler(shape, source, dtype).drafter()


class _Assembler:
    """Puts a drafter's weights together, tensor by tensor."""

    def __init__(self, shape: DrafterShape, source: TensorSource, dtype: torch.dtype) -> None:
        self._shape = shape
        self._source = source
        self._dtype = dtype

    def drafter(self) -> DrafterWeights:
        hidden = self._shape.hidden
        return DrafterWeights(
            fc=self._matrix("fc", hidden, len(self._shape.target_layers) * hidden),
            context_norm=self._norm("hidden_norm", hidden),
            layers=tuple(self._layer(f"layers.{layer}") for layer in range(self._shape.layers)),
            norm=self._norm("norm", hidden),
        )

    def _layer(self, prefix: str) -> BlockLayerWeights:
        shape, attention = self._shape, f"{prefix}.self_attn"
        hidden, inner = shape.hidden, shape.intermediate
        queries, keys = (heads * shape.head_dim for heads in (shape.query_heads, shape.kv_heads))
        return BlockLayerWeights(
            mixer_norm=self._norm(f"{prefix}.input_layernorm", hidden),
            q_proj=self._matrix(f"{attention}.q_proj", queries, hidden),
            kv_proj=self._fused((f"{attention}.k_proj", f"{attention}.v_proj"), keys, hidden),
            q_norm=self._norm(f"{attention}.q_norm", shape.head_dim),
            k_norm=self._norm(f"{attention}.k_norm", shape.head_dim),
            out_proj=self._matrix(f"{attention}.o_proj", hidden, queries),
            mlp_norm=self._norm(f"{prefix}.post_attention_layernorm", hidden),
            mlp=MlpWeights(
                self._fused((f"{prefix}.mlp.gate_proj", f"{prefix}.mlp.up_proj"), inner, hidden),
                self._matrix(f"{prefix}.mlp.down_proj", hidden, inner),
            ),
        )

    def _matrix(self, name: str, *shape: int) -> Matrix:
        return laid_out(self._source.matrix(f"{name}.weight", shape, self._dtype))

    def _fused(self, names: tuple[str, ...], *shape: int) -> Matrix:
        found = [self._source.matrix(f"{name}.weight", shape, self._dtype) for name in names]
        return laid_out(Matrix.fused(found))

    def _norm(self, name: str, size: int) -> Tensor:
        return self._source.read(f"{name}.weight", (size,), torch.float32)
