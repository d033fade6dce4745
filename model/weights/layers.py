"""A model's parameters as the operators want them: projections of one input are one matrix.

Owns the fused shapes, and how they are put together from published tensors of any `TensorSource`.
Does not know files. Immutable after assembly, so free to share between threads.
"""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tasuki.model.config import DenseShape, ModelConfig, MoeShape
from tasuki.pycache.layout import LayerKind
from tasuki.utils.progress import Progress, no_progress


class WeightsError(ValueError):
    """Weights that do not fit the config; the message names the tensor or file and the mend."""


Part = tuple[slice, ...]
"""Which elements of a tensor: a slice for each dimension from the first on, the rest whole."""
WHOLE: Part = ()


class TensorSource(Protocol):
    """Published tensors by name without the model's prefix, as `layers.0.mlp.gate.weight`."""

    def has(self, name: str) -> bool: ...

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        """`part` of a tensor of exactly that shape, converted to dtype, contiguous. Bytes outside
        the part are not read where the source can avoid it. Raises WeightsError."""


@dataclass(frozen=True)
class GdnWeights:
    """in_proj [q | k | v | z | b | a rows, hidden]; conv [channels, width]; decay_rate
    [value_heads] fp32, -exp(A_log); dt_bias [value_heads] fp32; norm [value_dim] fp32; out_proj
    [hidden, value_heads * value_dim]."""

    in_proj: Tensor
    conv: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out_proj: Tensor


@dataclass(frozen=True)
class AttentionWeights:
    """in_proj [query_heads x (q, gate) | k | v rows, hidden]; q_norm, k_norm [head_dim] fp32, 1 +
    w; out_proj [hidden, query_heads * head_dim]."""

    in_proj: Tensor
    q_norm: Tensor
    k_norm: Tensor
    out_proj: Tensor


@dataclass(frozen=True)
class MlpWeights:
    """gate_up [2 * intermediate, hidden], gate rows first; down [hidden, intermediate]."""

    gate_up: Tensor
    down: Tensor


@dataclass(frozen=True)
class MoeWeights:
    """router [experts, hidden]; gate_up [experts, 2 * intermediate, hidden]; down [experts, hidden,
    intermediate]; shared_gate [1, hidden]."""

    router: Tensor
    gate_up: Tensor
    down: Tensor
    shared: MlpWeights
    shared_gate: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """mixer_norm, mlp_norm [hidden] fp32, 1 + w."""

    mixer_norm: Tensor
    mixer: GdnWeights | AttentionWeights
    mlp_norm: Tensor
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True)
class ModelWeights:
    """embedding, head [vocab, hidden] (one tensor when tied); norm [hidden] fp32, 1 + w."""

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor

    @property
    def dtype(self) -> torch.dtype:
        return self.embedding.dtype


def assemble(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> ModelWeights:
    """Read every tensor the config asks for, one at a time; progress counts layers. Raises
    WeightsError."""
    return _Assembler(config, source, dtype, torch.device(device)).model(progress)


def _for_device(matrix: Tensor) -> Tensor:
    """The same [..., out, in] matrix, laid out as its device multiplies one row fastest."""
    if matrix.device.type != "cpu":
        return matrix
    # On a CPU one row times a matrix whose `out` is contiguous, which is what decode does, runs
    # 2.5 times as fast; a GPU reads rows of weights, and so do its kernels.
    return matrix.transpose(-1, -2).contiguous().transpose(-1, -2)


class _Assembler:
    def __init__(
        self, config: ModelConfig, source: TensorSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._source = source
        self._dtype = dtype
        self._device = device

    def model(self, progress: Progress) -> ModelWeights:
        config = self._config
        table = (config.vocab, config.hidden)
        embedding = self._read("embed_tokens.weight", *table)
        head = embedding if config.tied else _for_device(self._read("lm_head.weight", *table))
        layers: list[LayerWeights] = []
        for kind in config.layer_kinds:
            layers.append(self._layer(len(layers), kind))
            progress(len(layers), config.layers)
        norm = self._centred("norm.weight", config.hidden)
        return ModelWeights(embedding, tuple(layers), norm, head)

    def _layer(self, layer: int, kind: LayerKind) -> LayerWeights:
        prefix = f"layers.{layer}"
        hidden = self._config.hidden
        shape = self._config.feed_forward
        gdn = kind is LayerKind.GDN
        return LayerWeights(
            mixer_norm=self._centred(f"{prefix}.input_layernorm.weight", hidden),
            mixer=(
                self._gdn(f"{prefix}.linear_attn")
                if gdn
                else self._attention(f"{prefix}.self_attn")
            ),
            mlp_norm=self._centred(f"{prefix}.post_attention_layernorm.weight", hidden),
            mlp=(
                self._mlp(f"{prefix}.mlp", shape.intermediate)
                if isinstance(shape, DenseShape)
                else self._moe(f"{prefix}.mlp", shape)
            ),
        )

    def _gdn(self, prefix: str) -> GdnWeights:
        config = self._config
        heads, hidden = config.value_heads, config.hidden
        width = heads * config.value_dim
        rows = (("qkv", config.conv_channels), ("z", width), ("b", heads), ("a", heads))
        in_proj = [self._read(f"{prefix}.in_proj_{name}.weight", n, hidden) for name, n in rows]
        conv = self._read(f"{prefix}.conv1d.weight", config.conv_channels, 1, config.conv_width)
        return GdnWeights(
            in_proj=_for_device(torch.cat(in_proj)),
            conv=_for_device(conv.squeeze(1)),
            decay_rate=-self._float(f"{prefix}.A_log", heads).exp(),
            dt_bias=self._float(f"{prefix}.dt_bias", heads),
            norm=self._float(f"{prefix}.norm.weight", config.value_dim),
            out_proj=_for_device(self._read(f"{prefix}.out_proj.weight", hidden, width)),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self._config
        query, kv = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
        rows = (("q", 2 * query), ("k", kv), ("v", kv))
        in_proj = [self._read(f"{prefix}.{name}_proj.weight", n, config.hidden) for name, n in rows]
        return AttentionWeights(
            in_proj=_for_device(torch.cat(in_proj)),
            q_norm=self._centred(f"{prefix}.q_norm.weight", config.head_dim),
            k_norm=self._centred(f"{prefix}.k_norm.weight", config.head_dim),
            out_proj=_for_device(self._read(f"{prefix}.o_proj.weight", config.hidden, query)),
        )

    def _mlp(self, prefix: str, intermediate: int) -> MlpWeights:
        hidden = self._config.hidden
        gate = self._read(f"{prefix}.gate_proj.weight", intermediate, hidden)
        up = self._read(f"{prefix}.up_proj.weight", intermediate, hidden)
        down = self._read(f"{prefix}.down_proj.weight", hidden, intermediate)
        return MlpWeights(_for_device(torch.cat([gate, up])), _for_device(down))

    def _moe(self, prefix: str, shape: MoeShape) -> MoeWeights:
        hidden = self._config.hidden
        experts = f"{prefix}.experts"
        if self._source.has(f"{experts}.gate_up_proj"):
            size = (shape.experts, 2 * shape.intermediate, hidden)
            gate_up = self._read(f"{experts}.gate_up_proj", *size)
            down = self._read(f"{experts}.down_proj", shape.experts, hidden, shape.intermediate)
        else:
            split = [self._mlp(f"{experts}.{i}", shape.intermediate) for i in range(shape.experts)]
            gate_up = torch.stack([expert.gate_up for expert in split])
            down = torch.stack([expert.down for expert in split])
        return MoeWeights(
            router=self._read(f"{prefix}.gate.weight", shape.experts, hidden),
            gate_up=_for_device(gate_up),
            down=_for_device(down),
            shared=self._mlp(f"{prefix}.shared_expert", shape.shared_intermediate),
            shared_gate=self._read(f"{prefix}.shared_expert_gate.weight", 1, hidden),
        )

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._source.read(name, shape, self._dtype).to(self._device)

    def _float(self, name: str, *shape: int) -> Tensor:
        return self._source.read(name, shape, torch.float32).to(self._device)

    def _centred(self, name: str, size: int) -> Tensor:
        """Published zero-centred; kept as 1 + w in float32, which bf16 could not hold."""
        return 1 + self._float(name, size)
