"""Weights of a Kimi Linear model in the form used by its operators, read by their published names.

Projections of one input are fused into one matrix. The expansion of latents is split into its key
and its value part, because attention multiplies queries and outputs by them. Immutable after
assembly, so free to share between threads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.weights.layers import Weights, for_device, laid_out
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress

from .config import KimiConfig, Mixer


@dataclass(frozen=True)
class KdaWeights:
    """Weights of a KDA layer.

    in_proj: [q | k | v | decay rank | gate rank | beta rows, hidden]. conv: [channels, width].
    decay_proj, gate_proj: [heads * dim, rank], second steps of the products for decay and gate.
    decay_rate: [heads, 1] fp32, -exp(A_log). dt_bias: [heads, dim] fp32, bias of the decay. norm:
    [dim] fp32. out_proj: [hidden, heads * dim]. number: the layer's number among the KDA layers.
    """

    in_proj: Matrix
    conv: Tensor
    decay_proj: Matrix
    gate_proj: Matrix
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out_proj: Matrix
    number: int


@dataclass(frozen=True)
class LatentWeights:
    """Weights of a latent attention layer.

    in_proj: [query_heads x (key_dim, shared_dim) | latent | shared key rows, hidden]. norm: [rank]
    fp32, of the latent. key_proj [heads, key_dim, rank], value_proj [heads, rank, value_dim]: keys
    and values from the latent. out_proj: [hidden, heads * value_dim].
    """

    in_proj: Matrix
    norm: Tensor
    key_proj: Tensor
    value_proj: Tensor
    out_proj: Matrix


@dataclass(frozen=True)
class DenseWeights:
    """Weights of a SwiGLU block. gate_up [2 * intermediate, hidden], gate rows first; down [hidden,
    intermediate]."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class ExpertWeights:
    """Weights of a mixture of experts.

    router [experts, hidden] fp32, and bias [experts] fp32 of the choice. gate_up: [held, 2 *
    intermediate, hidden]. down: [held, hidden, intermediate]. shared: the expert of every token.
    """

    router: Tensor
    bias: Tensor
    gate_up: Matrix
    down: Matrix
    shared: DenseWeights


@dataclass(frozen=True)
class KimiLayer:
    """Weights of a layer. mixer_norm, mlp_norm [hidden] fp32: weights of the norms before mixer and
    feed-forward."""

    mixer_norm: Tensor
    mixer: KdaWeights | LatentWeights
    mlp_norm: Tensor
    mlp: DenseWeights | ExpertWeights


@dataclass(frozen=True)
class KimiWeights(Weights):
    """Weights of a model. norm: [hidden] fp32, of the last hidden states."""

    layers: tuple[KimiLayer, ...]
    norm: Tensor


def assemble(
    config: KimiConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> KimiWeights:
    """Read every tensor needed by the config from the source, one at a time, and return the
    weights. progress: called with the number of layers done and in all. Raises WeightsError."""
    return _Assembler(config, source, dtype, torch.device(device)).model(progress)


class _Assembler:
    def __init__(
        self, config: KimiConfig, source: TensorSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._config = config
        self._hidden = config.hidden
        self._source = source
        self._dtype = dtype
        self._device = device

    def model(self, progress: Progress) -> KimiWeights:
        config, kinds = self._config, self._config.mixers
        embedding = self._read("embed_tokens.weight", config.vocab, config.hidden)
        layers: list[KimiLayer] = []
        for mixer in kinds:
            layers.append(self._layer(len(layers), mixer))
            progress(len(layers), len(kinds))
        norm = self._float("norm.weight", config.hidden)
        # Read it last, in published order, so files are read from the first to the last.
        rows = config.head_rows
        head = (
            Matrix.of(embedding if rows is None else embedding[rows.start : rows.stop])
            if config.tied
            else self._matrix("lm_head.weight", config.own_vocab, config.hidden)
        )
        return KimiWeights(embedding, head, tuple(layers), norm)

    def _layer(self, layer: int, mixer: Mixer) -> KimiLayer:
        prefix, hidden = f"layers.{layer}", self._hidden
        attention = f"{prefix}.self_attn"
        return KimiLayer(
            mixer_norm=self._float(f"{prefix}.input_layernorm.weight", hidden),
            mixer=(
                self._kda(attention, self._config.mixers[:layer].count(Mixer.KDA))
                if mixer is Mixer.KDA
                else self._latent(attention)
            ),
            mlp_norm=self._float(f"{prefix}.post_attention_layernorm.weight", hidden),
            mlp=(
                self._dense(f"{prefix}.mlp", self._config.intermediate)
                if layer < self._config.dense_layers
                else self._experts(f"{prefix}.block_sparse_moe")
            ),
        )

    def _kda(self, prefix: str, number: int) -> KdaWeights:
        shape, hidden = self._config, self._hidden
        heads, dim, width, rank = shape.kda_heads, shape.kda_dim, shape.kda_width, shape.gate_rank
        rows = {"q": width, "k": width, "v": width, "f_a": rank, "g_a": rank, "b": heads}
        convs = [
            self._read(f"{prefix}.{name}_conv1d.weight", width, 1, shape.conv_width)
            for name in ("q", "k", "v")
        ]
        decay = self._float(f"{prefix}.A_log", 1, 1, heads, 1)
        return KdaWeights(
            in_proj=self._joined(prefix, rows),
            conv=for_device(torch.cat(convs).squeeze(1)),
            decay_proj=self._matrix(f"{prefix}.f_b_proj.weight", width, rank),
            gate_proj=self._matrix(f"{prefix}.g_b_proj.weight", width, rank),
            decay_rate=-decay.view(heads, 1).exp(),
            dt_bias=self._float(f"{prefix}.dt_bias", width).view(heads, dim),
            norm=self._float(f"{prefix}.o_norm.weight", dim),
            out_proj=self._matrix(f"{prefix}.o_proj.weight", hidden, width),
            number=number,
        )

    def _latent(self, prefix: str) -> LatentWeights:
        shape = self._config.latent
        heads, key, value = shape.heads, shape.key_dim, shape.value_dim
        expanded = self._read(f"{prefix}.kv_b_proj.weight", heads * (key + value), shape.rank)
        keys, values = expanded.view(heads, key + value, shape.rank).split_with_sizes(
            [key, value], dim=1
        )
        rows = {"q": heads * shape.query_dim, "kv_a": shape.row}
        return LatentWeights(
            in_proj=self._joined(prefix, rows),
            norm=self._float(f"{prefix}.kv_a_layernorm.weight", shape.rank),
            key_proj=keys.contiguous(),
            value_proj=values.transpose(1, 2).contiguous(),
            out_proj=self._matrix(f"{prefix}.o_proj.weight", self._hidden, heads * value),
        )

    def _dense(self, prefix: str, intermediate: int) -> DenseWeights:
        gate, up = (
            self._stored(f"{prefix}.{name}_proj.weight", intermediate, self._hidden)
            for name in ("gate", "up")
        )
        down = self._matrix(f"{prefix}.down_proj.weight", self._hidden, intermediate)
        return DenseWeights(laid_out(Matrix.fused([gate, up])), down)

    def _experts(self, prefix: str) -> ExpertWeights:
        shape, hidden = self._config.experts, self._hidden

        def stack(projection: str, *size: int) -> Matrix:
            names = [f"{prefix}.experts.{expert}.{projection}.weight" for expert in shape.own]
            return self._source.stack(names, size, self._dtype).to(self._device)

        gate, up = (stack(name, shape.intermediate, hidden) for name in ("w1", "w3"))
        return ExpertWeights(
            router=self._float(f"{prefix}.gate.weight", shape.experts, hidden),
            bias=self._float(f"{prefix}.gate.e_score_correction_bias", shape.experts),
            gate_up=laid_out(Matrix.fused([gate, up])),
            down=laid_out(stack("w2", hidden, shape.intermediate)),
            shared=self._dense(f"{prefix}.shared_experts", shape.shared),
        )

    def _joined(self, prefix: str, rows: dict[str, int]) -> Matrix:
        """Return one matrix of the projections named in `rows`, with their numbers of rows."""
        parts = []
        for name, count in rows.items():
            leaf = "kv_a_proj_with_mqa" if name == "kv_a" else f"{name}_proj"
            parts.append(self._stored(f"{prefix}.{leaf}.weight", count, self._hidden))
        return laid_out(Matrix.fused(parts))

    def _matrix(self, name: str, *size: int) -> Matrix:
        return laid_out(self._stored(name, *size))

    def _stored(self, name: str, *size: int) -> Matrix:
        return self._source.matrix(name, size, self._dtype).to(self._device)

    def _read(self, name: str, *size: int) -> Tensor:
        return self._source.read(name, size, self._dtype).to(self._device)

    def _float(self, name: str, *size: int) -> Tensor:
        return self._source.read(name, size, torch.float32).to(self._device)
