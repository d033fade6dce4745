"""The family's weights, put together from published tensors of any `TensorSource`.

Knows the published names and the fused shapes. Does not know files. Immutable after assembly, so
free to share between threads.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig, DenseShape, MoeShape
from tasuki.model.layer_kind import LayerKind
from tasuki.model.weights.layers import (
    AttentionWeights,
    DraftWeights,
    GdnWeights,
    LayerWeights,
    MlpWeights,
    MoeWeights,
    Weights,
    for_device,
    laid_out,
)
from tasuki.model.weights.matrix import Matrix
from tasuki.model.weights.source import RandomSource, TensorSource
from tasuki.utils.logs import Progress, no_progress


@dataclass(frozen=True)
class ModelWeights(Weights):
    """Weights of a model. norm: [hidden] fp32, 1 + w. draft: None without a draft layer."""

    layers: tuple[LayerWeights, ...]
    norm: Tensor
    draft: DraftWeights | None = None


def assemble(
    config: DeltaNetConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> ModelWeights:
    """Read every tensor needed by the config from the source, one at a time, and return the
    weights. progress: called with the number of layers done and in all. Raises WeightsError."""
    return Assembler(config, source, dtype, torch.device(device)).model(progress)


def random_weights(
    config: DeltaNetConfig, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> ModelWeights:
    """Return random weights. Activations stay near unit size, and logits spread widely."""
    return assemble(config, RandomSource(seed, device), dtype, device)


class Assembler:
    """Puts the weights of one config together, tensor by tensor."""

    def __init__(
        self, config: DeltaNetConfig, source: TensorSource, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.config = config
        self._source = source
        self._dtype = dtype
        self._device = device

    def model(self, progress: Progress) -> ModelWeights:
        config = self.config
        table = (config.vocab, config.hidden)
        embedding = self._read("embed_tokens.weight", *table)
        layers: list[LayerWeights] = []
        for kind in config.layer_kinds:
            recurrent = config.layer_kinds[: len(layers)].count(LayerKind.GDN)
            layers.append(self._layer(f"layers.{len(layers)}", kind, recurrent))
            progress(len(layers), config.layers)
        norm = self._centred("norm.weight", config.hidden)
        draft = self._draft() if config.draft_layers else None
        # Read it last, in published order, so files are read from the first to the last.
        rows = config.head_rows
        head = (
            Matrix.of(embedding if rows is None else embedding[rows.start : rows.stop])
            if config.tied
            else laid_out(
                self.matrix("lm_head.weight", len(rows or range(config.vocab)), config.hidden)
            )
        )
        return ModelWeights(embedding, head, tuple(layers), norm, draft)

    def _draft(self) -> DraftWeights:
        hidden = self.config.hidden
        return DraftWeights(
            fc=laid_out(self.matrix("mtp.fc.weight", hidden, 2 * hidden)),
            embedding_norm=self._centred("mtp.pre_fc_norm_embedding.weight", hidden),
            hidden_norm=self._centred("mtp.pre_fc_norm_hidden.weight", hidden),
            layer=self._layer("mtp.layers.0", LayerKind.DRAFT, 0),
            norm=self._centred("mtp.norm.weight", hidden),
        )

    def _layer(self, prefix: str, kind: LayerKind, recurrent: int) -> LayerWeights:
        """Read a layer. recurrent: number of GDN layers before it."""
        hidden = self.config.hidden
        shape = self.config.feed_forward
        gdn = kind is LayerKind.GDN
        return LayerWeights(
            mixer_norm=self._centred(f"{prefix}.input_layernorm.weight", hidden),
            mixer=(
                self._gdn(f"{prefix}.linear_attn", recurrent)
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

    def gdn_projections(self, prefix: str) -> list[Matrix]:
        """Return the matrices of a GDN layer's input, whose rows are [q | k | v | z | b | a]."""
        config = self.config
        heads, width = config.value_heads, config.value_heads * config.value_dim
        rows = (("qkv", config.conv_channels), ("z", width), ("b", heads), ("a", heads))
        return [
            self.matrix(f"{prefix}.in_proj_{name}.weight", n, config.hidden) for name, n in rows
        ]

    def _gdn(self, prefix: str, number: int) -> GdnWeights:
        config = self.config
        heads, hidden = config.value_heads, config.hidden
        width = heads * config.value_dim
        conv = self._read(f"{prefix}.conv1d.weight", config.conv_channels, 1, config.conv_width)
        return GdnWeights(
            in_proj=laid_out(Matrix.fused(self.gdn_projections(prefix))),
            conv=for_device(conv.squeeze(1)),
            decay_rate=-self._float(f"{prefix}.A_log", heads).exp(),
            dt_bias=self._float(f"{prefix}.dt_bias", heads),
            norm=self._float(f"{prefix}.norm.weight", config.value_dim),
            out_proj=laid_out(self.matrix(f"{prefix}.out_proj.weight", hidden, width)),
            number=number,
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self.config
        query, kv = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
        rows = (("q", 2 * query), ("k", kv), ("v", kv))
        in_proj = [
            self.matrix(f"{prefix}.{name}_proj.weight", n, config.hidden) for name, n in rows
        ]
        return AttentionWeights(
            in_proj=laid_out(Matrix.fused(in_proj)),
            q_norm=self._centred(f"{prefix}.q_norm.weight", config.head_dim),
            k_norm=self._centred(f"{prefix}.k_norm.weight", config.head_dim),
            out_proj=laid_out(self.matrix(f"{prefix}.o_proj.weight", config.hidden, query)),
        )

    def _mlp(self, prefix: str, intermediate: int) -> MlpWeights:
        hidden = self.config.hidden
        gate, up = (
            self.matrix(f"{prefix}.{name}_proj.weight", intermediate, hidden)
            for name in ("gate", "up")
        )
        down = self.matrix(f"{prefix}.down_proj.weight", hidden, intermediate)
        return MlpWeights(laid_out(Matrix.fused([gate, up])), laid_out(down))

    def _experts(self, experts: str, shape: MoeShape) -> tuple[Matrix, Matrix]:
        hidden = self.config.hidden
        if self._source.has(f"{experts}.gate_up_proj"):
            size = (len(shape.own), 2 * shape.intermediate, hidden)
            gate_up = self.matrix(f"{experts}.gate_up_proj", *size)
            return gate_up, self.matrix(
                f"{experts}.down_proj", len(shape.own), hidden, shape.intermediate
            )
        # ModelOpt splits a fused tensor into a list for each projection.
        listed = self._source.has(f"{experts}.gate_proj.0.weight")

        def stack(projection: str, *size: int) -> Matrix:
            names = [
                f"{experts}.{projection}.{expert}.weight"
                if listed
                else f"{experts}.{expert}.{projection}.weight"
                for expert in shape.own
            ]
            return self._source.stack(names, size, self._dtype).to(self._device)

        gate, up = (stack(name, shape.intermediate, hidden) for name in ("gate_proj", "up_proj"))
        return Matrix.fused([gate, up]), stack("down_proj", hidden, shape.intermediate)

    def _moe(self, prefix: str, shape: MoeShape) -> MoeWeights:
        hidden = self.config.hidden
        gate_up, down = self._experts(f"{prefix}.experts", shape)
        return MoeWeights(
            router=self._read(f"{prefix}.gate.weight", shape.experts, hidden),
            gate_up=laid_out(gate_up),
            down=laid_out(down),
            shared=self._mlp(f"{prefix}.shared_expert", shape.shared_intermediate),
            shared_gate=self._read(f"{prefix}.shared_expert_gate.weight", 1, hidden),
        )

    def matrix(self, name: str, *shape: int) -> Matrix:
        return self._source.matrix(name, shape, self._dtype).to(self._device)

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._source.read(name, shape, self._dtype).to(self._device)

    def _float(self, name: str, *shape: int) -> Tensor:
        return self._source.read(name, shape, torch.float32).to(self._device)

    def _centred(self, name: str, size: int) -> Tensor:
        """Read a norm's weight w, and return 1 + w in float32. bf16 could not represent 1 + w, so
        checkpoints store w."""
        return 1 + self._float(name, size)
