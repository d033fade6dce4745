"""Weights of layers in the form used by the common operators: projections of one input are fused
into one matrix.

Owns the fused shapes. A family puts them together from published tensors. Does not know files.
Immutable after assembly, so free to share between threads.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass

import torch
from torch import Tensor

from .kernel_layout import for_kernels
from .matrix import Kind, Matrix, named_kinds


@dataclass(frozen=True)
class GdnWeights:
    """Weights of a GDN layer.

    in_proj: [q | k | v | z | b | a rows, hidden]. conv: [channels, width], the convolution.
    decay_rate: [value_heads] fp32, -exp(A_log). dt_bias: [value_heads] fp32, bias of the decay.
    norm: [value_dim] fp32, weight of the gated norm. out_proj: [hidden, value_heads * value_dim].
    number: the layer's number among the GDN layers.
    """

    in_proj: Matrix
    conv: Tensor
    decay_rate: Tensor
    dt_bias: Tensor
    norm: Tensor
    out_proj: Matrix
    number: int


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
class Weights:
    """The weights of a model of any family, with those that every family has.

    embedding: [vocab, hidden]. head: [vocab, hidden] or a rank's rows of it; it shares the
    embedding's memory if the two are tied.
    """

    embedding: Tensor
    head: Matrix

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of activations and of all unquantised weights."""
        return self.embedding.dtype

    @property
    def device(self) -> torch.device:
        return self.embedding.device

    @property
    def tables(self) -> tuple[Tensor, ...]:
        """Return the lookup tables, views of mapped files. A token reads a few rows of them."""
        return ()

    @property
    def formats(self) -> str:
        """Return the names of all storage formats used by the model's matrices, joined by `+`."""
        return named_kinds(kind for matrix in matrices(self) for kind in matrix.kinds)


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


def laid_out(matrix: Matrix) -> Matrix:
    """Return the matrix in its device's layout. Plain matrices on a CPU and quantised ones on a GPU
    change. Quantised matrices on a CPU stay as stored, because a CPU dequantises them at use."""
    if matrix.kinds == {Kind.PLAIN}:
        return Matrix.of(for_device(matrix.plain))
    return matrix if matrix.is_on_cpu else Matrix(for_kernels(matrix.segments))
