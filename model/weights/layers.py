"""A model's weights in the form used by the operators: projections of one input are fused into one
matrix.

Owns the fused shapes, and how they are put together from published tensors of any `TensorSource`.
Does not know files. Immutable after assembly, so free to share between threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from tasuki.model.cache_shape import LayerKind
from tasuki.model.config import DenseShape, ModelConfig, MoeShape
from tasuki.utils.logs import Progress, no_progress

from .kernel_layout import for_kernels
from .matrix import Kind, Matrix, named_kinds
from .source import RandomSource, TensorSource


@dataclass(frozen=True)
class GdnWeights:
    """Weights of a GDN layer.

    in_proj: [q | k | v | z | b | a rows, hidden]. conv: [channels, width], the convolution.
    decay_rate: [value_heads] fp32, -exp(A_log). dt_bias: [value_heads] fp32, bias of the decay.
    norm: [value_dim] fp32, weight of the gated norm. out_proj: [hidden, value_heads * value_dim].
    """

    in_proj: Matrix
    conv: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out_proj: Matrix


@dataclass(frozen=True)
class AttentionWeights:
    """Weights of an attention layer.

    in_proj: [query_heads x (q, gate) | k | v rows, hidden]. q_norm, k_norm: [head_dim] fp32, 1 + w.
    out_proj: [hidden, query_heads * head_dim].
    """

    in_proj: Matrix
    q_norm: Tensor
    k_norm: Tensor
    out_proj: Matrix


@dataclass(frozen=True)
class MlpWeights:
    """Weights of a SwiGLU block. gate_up [2 * intermediate, hidden], gate rows first; down [hidden,
    intermediate]."""

    gate_up: Matrix
    down: Matrix


@dataclass(frozen=True)
class MoeWeights:
    """Weights of a mixture of experts.

    router: [experts, hidden]. gate_up: [held, 2 * intermediate, hidden]. down: [held, hidden,
    intermediate]. held: number of experts on this rank; a single rank has all. shared_gate: [1,
    hidden].
    """

    router: Tensor
    gate_up: Matrix
    down: Matrix
    shared: MlpWeights
    shared_gate: Tensor


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a transformer layer: its mixer (attention or GDN) and its feed-forward.
    mixer_norm, mlp_norm [hidden] fp32: weights of the norms before them, as 1 + w."""

    mixer_norm: Tensor
    mixer: GdnWeights | AttentionWeights
    mlp_norm: Tensor
    mlp: MlpWeights | MoeWeights


@dataclass(frozen=True)
class DraftWeights:
    """Weights of the draft layer.

    fc: [hidden, 2 * hidden]. Its input is a token's normed embedding, then the normed final hidden
    state of the token before. embedding_norm, hidden_norm, norm: [hidden] fp32, 1 + w. layer: a
    full-attention layer.
    """

    fc: Matrix
    embedding_norm: Tensor
    hidden_norm: Tensor
    layer: LayerWeights
    norm: Tensor

    @property
    def attention(self) -> AttentionWeights:
        assert isinstance(self.layer.mixer, AttentionWeights)
        return self.layer.mixer


@dataclass(frozen=True)
class ModelWeights:
    """Weights of a model.

    embedding: [vocab, hidden]. head: [vocab, hidden] or a rank's rows of it; it shares the
    embedding's memory if the two are tied. norm: [hidden] fp32, 1 + w. draft: None if the config
    has no draft layer.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Matrix
    draft: DraftWeights | None = None

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations and of all unquantised weights."""
        return self.embedding.dtype

    @property
    def formats(self) -> str:
        """Return the names of all storage formats used by the model's matrices, joined by `+`."""
        return named_kinds(kind for matrix in matrices(self) for kind in matrix.kinds)


def assemble(
    config: ModelConfig,
    source: TensorSource,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> ModelWeights:
    """Read every tensor needed by the config from the source, one at a time, and return the
    weights. progress: called with the number of layers done and in all. Raises WeightsError."""
    return _Assembler(config, source, dtype, torch.device(device)).model(progress)


def random_weights(
    config: ModelConfig, seed: int, dtype: torch.dtype, device: torch.device | str = "cpu"
) -> ModelWeights:
    """Return random weights. Activations stay near unit size, and logits spread widely, so that
    ties are rare."""
    return assemble(config, RandomSource(seed, device), dtype, device)


def tensors(holder: object) -> Iterator[Tensor]:
    """Yield every tensor in nested dataclasses and tuples. A tensor used as both embedding and head
    comes twice."""
    yield from (found for found in _leaves(holder, Tensor) if isinstance(found, Tensor))


def matrices(holder: object) -> Iterator[Matrix]:
    """Yield every `Matrix` in nested dataclasses and tuples."""
    yield from (found for found in _leaves(holder, Matrix) if isinstance(found, Matrix))


def _leaves(holder: object, kind: type) -> Iterator[object]:
    if isinstance(holder, kind):
        yield holder
    elif isinstance(holder, tuple):
        for item in holder:
            yield from _leaves(item, kind)
    elif is_dataclass(holder):
        for field in fields(holder):
            yield from _leaves(getattr(holder, field.name), kind)


def for_device(tensor: Tensor) -> Tensor:
    """Return the same numbers [..., out, in] in the memory layout of the tensor's device:
    transposed on a CPU, because products with one row are fastest then; unchanged on a GPU."""
    if tensor.device.type != "cpu":
        return tensor
    # On a CPU, decode multiplies one row by a matrix. That runs 2.5 times as fast if `out` is
    # contiguous. A GPU and its kernels read rows of weights.
    return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)


def _laid_out(matrix: Matrix) -> Matrix:
    """Return the matrix in its device's layout. Plain matrices on a CPU and quantised ones on a GPU
    change. Quantised matrices on a CPU stay as stored, because a CPU dequantises them at use."""
    if matrix.kinds == {Kind.PLAIN}:
        return Matrix.of(for_device(matrix.plain))
    return matrix if matrix.is_on_cpu else Matrix(for_kernels(matrix.segments))


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
        layers: list[LayerWeights] = []
        for kind in config.layer_kinds:
            layers.append(self._layer(f"layers.{len(layers)}", kind))
            progress(len(layers), config.layers)
        norm = self._centred("norm.weight", config.hidden)
        draft = self._draft() if config.draft_layers else None
        # Read it last, in published order, so files are read from the first to the last.
        rows = config.head_rows
        head = (
            Matrix.of(embedding if rows is None else embedding[rows.start : rows.stop])
            if config.tied
            else _laid_out(
                self._matrix("lm_head.weight", len(rows or range(config.vocab)), config.hidden)
            )
        )
        return ModelWeights(embedding, tuple(layers), norm, head, draft)

    def _draft(self) -> DraftWeights:
        hidden = self._config.hidden
        return DraftWeights(
            fc=_laid_out(self._matrix("mtp.fc.weight", hidden, 2 * hidden)),
            embedding_norm=self._centred("mtp.pre_fc_norm_embedding.weight", hidden),
            hidden_norm=self._centred("mtp.pre_fc_norm_hidden.weight", hidden),
            layer=self._layer("mtp.layers.0", LayerKind.DRAFT),
            norm=self._centred("mtp.norm.weight", hidden),
        )

    def _layer(self, prefix: str, kind: LayerKind) -> LayerWeights:
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
        in_proj = [self._matrix(f"{prefix}.in_proj_{name}.weight", n, hidden) for name, n in rows]
        conv = self._read(f"{prefix}.conv1d.weight", config.conv_channels, 1, config.conv_width)
        return GdnWeights(
            in_proj=_laid_out(Matrix.fused(in_proj)),
            conv=for_device(conv.squeeze(1)),
            decay_rate=-self._float(f"{prefix}.A_log", heads).exp(),
            dt_bias=self._float(f"{prefix}.dt_bias", heads),
            norm=self._float(f"{prefix}.norm.weight", config.value_dim),
            out_proj=_laid_out(self._matrix(f"{prefix}.out_proj.weight", hidden, width)),
        )

    def _attention(self, prefix: str) -> AttentionWeights:
        config = self._config
        query, kv = config.query_heads * config.head_dim, config.kv_heads * config.head_dim
        rows = (("q", 2 * query), ("k", kv), ("v", kv))
        in_proj = [
            self._matrix(f"{prefix}.{name}_proj.weight", n, config.hidden) for name, n in rows
        ]
        return AttentionWeights(
            in_proj=_laid_out(Matrix.fused(in_proj)),
            q_norm=self._centred(f"{prefix}.q_norm.weight", config.head_dim),
            k_norm=self._centred(f"{prefix}.k_norm.weight", config.head_dim),
            out_proj=_laid_out(self._matrix(f"{prefix}.o_proj.weight", config.hidden, query)),
        )

    def _mlp(self, prefix: str, intermediate: int) -> MlpWeights:
        hidden = self._config.hidden
        gate, up = (
            self._matrix(f"{prefix}.{name}_proj.weight", intermediate, hidden)
            for name in ("gate", "up")
        )
        down = self._matrix(f"{prefix}.down_proj.weight", hidden, intermediate)
        return MlpWeights(_laid_out(Matrix.fused([gate, up])), _laid_out(down))

    def _experts(self, experts: str, shape: MoeShape) -> tuple[Matrix, Matrix]:
        hidden = self._config.hidden
        if self._source.has(f"{experts}.gate_up_proj"):
            size = (len(shape.own), 2 * shape.intermediate, hidden)
            gate_up = self._matrix(f"{experts}.gate_up_proj", *size)
            return gate_up, self._matrix(
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
        hidden = self._config.hidden
        gate_up, down = self._experts(f"{prefix}.experts", shape)
        return MoeWeights(
            router=self._read(f"{prefix}.gate.weight", shape.experts, hidden),
            gate_up=_laid_out(gate_up),
            down=_laid_out(down),
            shared=self._mlp(f"{prefix}.shared_expert", shape.shared_intermediate),
            shared_gate=self._read(f"{prefix}.shared_expert_gate.weight", 1, hidden),
        )

    def _matrix(self, name: str, *shape: int) -> Matrix:
        return self._source.matrix(name, shape, self._dtype).to(self._device)

    def _read(self, name: str, *shape: int) -> Tensor:
        return self._source.read(name, shape, self._dtype).to(self._device)

    def _float(self, name: str, *shape: int) -> Tensor:
        return self._source.read(name, shape, torch.float32).to(self._device)

    def _centred(self, name: str, size: int) -> Tensor:
        """Read a norm's weight w, and return 1 + w in float32. bf16 could not represent 1 + w, so
        checkpoints store w."""
        return 1 + self._float(name, size)
