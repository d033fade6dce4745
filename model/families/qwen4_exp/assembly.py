"""Puts a Qwen4-Exp model's weights together from published tensors.

The hash's constants are computed from the config. A checkpoint holds them too, and they must agree.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from tasuki.model.config import MoeShape
from tasuki.model.families.qwen3_5.weights import Assembler
from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig, TableShape
from tasuki.model.families.qwen4_exp.streams import ConnectionWeights, MixerWeights
from tasuki.model.families.qwen4_exp.table.layer import TableWeights
from tasuki.model.families.qwen4_exp.table.rows import NgramTable, shard_lengths
from tasuki.model.families.qwen4_exp.weights import (
    DraftWeights,
    IndexWeights,
    LayerWeights,
    ModelWeights,
    SparseWeights,
)
from tasuki.model.layer_kind import LayerKind
from tasuki.model.weights.layers import GdnWeights, for_device, laid_out
from tasuki.model.weights.matrix import Matrix, WeightsError
from tasuki.model.weights.source import TensorSource
from tasuki.utils.logs import Progress, no_progress


class Qwen4ExpAssembler(Assembler):
    """Reads every tensor that the config needs, one at a time. Raises WeightsError."""

    def __init__(
        self,
        config: Qwen4ExpConfig,
        source: TensorSource,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__(config, source, dtype, torch.device(device))
        self._shape = config

    def whole(self, progress: Progress = no_progress) -> ModelWeights:
        """Return the model's weights. progress: called with the number of layers done and in
        all."""
        config = self._shape
        embedding = self._read("embed_tokens.weight", config.vocab, config.hidden)
        layers: list[LayerWeights] = []
        for layer, kind in enumerate(config.layer_kinds):
            recurrent = config.layer_kinds[:layer].count(LayerKind.GDN)
            table = config.table_at(layer)
            layers.append(self._own_layer(f"layers.{layer}", kind, recurrent, table))
            progress(len(layers), config.layers)
        final = self._mixer("hyper_connection_mixer")
        draft = self._own_draft() if config.draft_layers else None
        rows = config.head_rows or range(config.vocab)
        if config.tied:
            head = Matrix.of(embedding[rows.start : rows.stop])
        else:
            head = laid_out(self.matrix("lm_head.weight", len(rows), config.hidden))
        return ModelWeights(embedding, head, tuple(layers), final, draft)

    def _own_layer(
        self, prefix: str, kind: LayerKind, recurrent: int, table: TableShape | None
    ) -> LayerWeights:
        """Read a layer. recurrent: number of GDN layers before it."""
        shape = self._shape.feed_forward
        assert isinstance(shape, MoeShape)
        mixer: GdnWeights | SparseWeights
        if kind is LayerKind.GDN:
            mixer = self._gdn(f"{prefix}.linear_attn", recurrent)
        else:
            mixer = self._sparse(f"{prefix}.self_attn")
        return LayerWeights(
            mixer_connection=self._connection(f"{prefix}.attn_hyper_connection"),
            mixer=mixer,
            experts_connection=self._connection(f"{prefix}.mlp_hyper_connection"),
            experts=self._moe(f"{prefix}.mlp", shape),
            table=None if table is None else self._table(f"{prefix}.ple", table),
        )

    def _own_draft(self) -> DraftWeights:
        hidden, streams = self._shape.hidden, self._shape.stream_width
        return DraftWeights(
            embedding_norm=self._centred("mtp.pre_fc_norm_embedding.weight", hidden),
            hidden_norm=self._centred("mtp.pre_fc_norm_hidden.weight", streams),
            fc_embedding=self._square("mtp.fc_embedding.weight"),
            fc_hidden=self._square("mtp.fc_hidden.weight"),
            layer=self._own_layer("mtp.layers.0", LayerKind.DRAFT, 0, None),
            final=self._mixer("mtp.hyper_connection_mixer"),
        )

    def _square(self, name: str) -> Tensor:
        return self._product(name, self._shape.hidden, self._shape.hidden)

    def _product(self, name: str, rows: int, columns: int) -> Tensor:
        return for_device(self._read(name, rows, columns))

    def _mixer(self, prefix: str) -> MixerWeights:
        width, rank = self._shape.stream_width, self._shape.streams.rank
        return MixerWeights(
            norm=self._centred(f"{prefix}.hc_norm.weight", width),
            down=self._product(f"{prefix}.input_mix_weight_down.weight", rank, width),
            up=self._product(f"{prefix}.input_mix_weight_up.weight", width, rank),
        )

    def _connection(self, prefix: str) -> ConnectionWeights:
        count, width = self._shape.streams.count, self._shape.stream_width
        return ConnectionWeights(
            mixer=self._mixer(prefix),
            inject=self._product(f"{prefix}.block_inject_weight.weight", count, width),
        )

    def _sparse(self, prefix: str) -> SparseWeights:
        index = self._shape.index
        rows = (index.heads + 1) * index.dim
        names = f"{prefix}.indexer"
        return SparseWeights(
            attention=self._attention(prefix),
            index=IndexWeights(
                query_key=self._product(f"{names}.index_qk_proj.weight", rows, self._shape.hidden),
                q_norm=self._centred(f"{names}.q_layernorm.weight", index.dim),
                k_norm=self._centred(f"{names}.k_layernorm.weight", index.dim),
            ),
        )

    def _table(self, prefix: str, shape: TableShape) -> TableWeights:
        hidden, streams = self._shape.hidden, self._shape.stream_width
        names = f"{prefix}.ple_embedding"
        self._check_constants(names, "layer_multipliers", shape.multipliers)
        self._check_constants(names, "ngram_heads_vocab_sizes", shape.sizes)
        self._check_constants(names, "ngram_heads_offsets", shape.offsets)
        taps = self._shape.table_taps
        conv = self._read(f"{prefix}.conv1d.weight", streams, 1, taps)
        return TableWeights(
            table=self._rows(f"{names}.ngram_embedding", shape),
            key=self._product(f"{prefix}.key_proj.weight", streams, shape.width),
            value=self._product(f"{prefix}.value_proj.weight", hidden, shape.width),
            key_norm=self._centred(f"{prefix}.norm_key.weight", streams),
            query_norm=self._centred(f"{prefix}.norm_query.weight", streams),
            conv_norm=self._centred(f"{prefix}.norm_conv.weight", streams),
            conv=conv.squeeze(1),
        )

    def _check_constants(self, names: str, leaf: str, computed: Sequence[int]) -> None:
        name = f"{names}.{leaf}"
        found = self._source.stored(name, (len(computed),))
        if found is None or found.is_meta:
            return
        if found.tolist() != list(computed):
            raise WeightsError(
                f"tensor {name} begins with {found[0]}, and the config's seed, vocab_size and "
                f"ngram fields give {computed[0]}: fetch config.json and all shards from the same "
                "model"
            )

    def _rows(self, prefix: str, shape: TableShape) -> NgramTable:
        whole = self._source.stored(f"{prefix}.weight", (shape.rows, shape.dim))
        if whole is not None:
            shards = [whole]
        else:
            lengths = shard_lengths(shape.rows, shape.shards)
            shards = [
                self._shard(f"{prefix}.shard_{number}.weight", (length, shape.dim))
                for number, length in enumerate(lengths)
            ]
        scale = self._source.stored(f"{prefix}.weight_scale", (1,))
        if (shards[0].dtype.itemsize == 1) != (scale is not None):
            raise WeightsError(
                f"tensor {prefix}.weight_scale does not fit rows of {shards[0].dtype}: codes have "
                "one scale, and numbers have none; fetch all shards from the same model"
            )
        return NgramTable(shape, tuple(shards), scale)

    def _shard(self, name: str, size: tuple[int, int]) -> Tensor:
        found = self._source.stored(name, size)
        return self._source.read(name, size, self._dtype) if found is None else found
