"""The weights of a Qwen4-Exp model, in the form that its layers use.

Immutable after assembly, so free to share between threads.
"""

from dataclasses import dataclass

from torch import Tensor

from tasuki.model.families.qwen4_exp.streams import ConnectionWeights, MixerWeights
from tasuki.model.families.qwen4_exp.table.layer import TableWeights
from tasuki.model.weights.layers import AttentionWeights, GdnWeights, MoeWeights, Weights


@dataclass(frozen=True)
class IndexWeights:
    """Weights of a sparse layer's index. query_key [(heads + 1) * dim, hidden]: rows of the index
    queries, then of the key. q_norm, k_norm [dim] fp32: 1 + w."""

    query_key: Tensor
    q_norm: Tensor
    k_norm: Tensor


@dataclass(frozen=True)
class SparseWeights:
    """Weights of a sparse attention layer."""

    attention: AttentionWeights
    index: IndexWeights


@dataclass(frozen=True)
class LayerWeights:
    """Weights of a layer. table: added before the mixer; None: the layer has none."""

    mixer_connection: ConnectionWeights
    mixer: GdnWeights | SparseWeights
    experts_connection: ConnectionWeights
    experts: MoeWeights
    table: TableWeights | None = None


@dataclass(frozen=True)
class DraftWeights:
    """Weights of the draft layer. embedding_norm [hidden], hidden_norm [count * hidden] fp32: 1 +
    w, each over all of its input. fc_embedding, fc_hidden: [hidden, hidden]. final: contracts the
    streams for the head."""

    embedding_norm: Tensor
    hidden_norm: Tensor
    fc_embedding: Tensor
    fc_hidden: Tensor
    layer: LayerWeights
    final: MixerWeights

    @property
    def sparse(self) -> SparseWeights:
        assert isinstance(self.layer.mixer, SparseWeights)
        return self.layer.mixer


@dataclass(frozen=True)
class ModelWeights(Weights):
    """Weights of a model. final: contracts the streams for the head. draft: None if the config has
    no draft layer."""

    layers: tuple[LayerWeights, ...]
    final: MixerWeights
    draft: DraftWeights | None = None

    @property
    def tables(self) -> tuple[Tensor, ...]:
        every = [layer.table.table for layer in self.layers if layer.table is not None]
        return tuple(shard for table in every for shard in table.shards)
