"""The shape of a Qwen4-Exp text model, beside the sizes that every hybrid model has, and its cache.

Index keys are the tail of a sparse layer's block, whole on every rank, since all ranks choose
alike. Windows and the carry are whole too: they are rows of streams or of index keys.

Immutable, so free to share between threads. Invariants: every attention layer is sparse; a table is
before a recurrent layer only.
"""

from dataclasses import dataclass
from enum import Enum

from tasuki.model.config import DeltaNetConfig
from tasuki.model.layer_kind import LayerKind
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout
from tasuki.pycache.parts import Heads, LayerCache, Part, Segments, Whole


class OutputGate(Enum):
    """Activation of a recurrent layer's output gate."""

    SIGMOID = "sigmoid"
    SILU = "silu"


@dataclass(frozen=True)
class StreamsShape:
    """Shape of the hyper-connections. count: number of residual streams. rank: inner width of the
    mixing weights."""

    count: int
    rank: int


@dataclass(frozen=True)
class IndexShape:
    """Shape of a sparse layer's index. A query attends to the tokens of `chosen` blocks of `ratio`
    tokens each, and to the tokens behind the last whole block. heads: index queries of a token.
    dim: width of an index key."""

    heads: int
    dim: int
    ratio: int
    chosen: int

    @property
    def most_dense(self) -> int:
        """Return the longest context that a query sees whole, in tokens."""
        return self.ratio * (self.chosen + 1) - 1


@dataclass(frozen=True)
class TableShape:
    """One n-gram table, added to the streams before layer `layer`.

    multipliers [ngram]: odd factor of each token of an n-gram, the last token first. sizes, offsets
    [heads]: number of rows of each head, and its first row. rows: rows of the table with padding.
    dim: width of a row. shards: number of published parts of equal length, the last may be shorter.
    """

    layer: int
    multipliers: tuple[int, ...]
    sizes: tuple[int, ...]
    offsets: tuple[int, ...]
    rows: int
    dim: int
    shards: int

    @property
    def ngram(self) -> int:
        """Return the number of tokens of the longest n-gram."""
        return len(self.multipliers)

    @property
    def heads_per_ngram(self) -> int:
        return len(self.sizes) // (self.ngram - 1)

    @property
    def width(self) -> int:
        """Return the width of a token's rows, end to end."""
        return len(self.sizes) * self.dim


@dataclass(frozen=True, kw_only=True)
class Qwen4ExpConfig(DeltaNetConfig):
    """Shape of a Qwen4-Exp model. end_of_text: id before which tokens are not hashed together; None
    without tables. table_taps: taps of the convolution behind a table, `ngram` tokens apart.
    output_gate: of the recurrent layers."""

    streams: StreamsShape
    index: IndexShape
    output_gate: OutputGate
    tables: tuple[TableShape, ...]
    table_taps: int
    end_of_text: int | None

    @property
    def constants(self) -> str:
        index, gate = self.index, self.output_gate.value
        found = f"{super().constants}; {index.chosen} blocks of {index.ratio} tokens; {gate} gate"
        for table in self.tables:
            factors = ", ".join(map(str, table.multipliers))
            found += f"; n-grams by {factors}, ended by {self.end_of_text}"
        return found

    def own_layout(self, kv_dtype: str, conv_dtype: str, ssm_dtype: str) -> CacheLayout:
        return _layout_of(self, kv_dtype, conv_dtype, ssm_dtype)

    @property
    def ids_before(self) -> int:
        return max((table.ngram - 1 for table in self.tables), default=0)

    @property
    def stream_width(self) -> int:
        """Return the width of all streams of a token, end to end."""
        return self.streams.count * self.hidden

    def table_at(self, layer: int) -> TableShape | None:
        return next((table for table in self.tables if table.layer == layer), None)

    def table_window(self, table: TableShape) -> int:
        """Return the number of rows before a token that the convolution behind a table reads."""
        return (self.table_taps - 1) * table.ngram


_SIDES = 2


def _layout_of(config: Qwen4ExpConfig, kv_dtype: str, dtype: str, ssm_dtype: str) -> CacheLayout:
    """Return the layout. dtype: of index keys, windows and carry, the model's own."""
    draft = _sparse("draft", config, kv_dtype, dtype, (_carry(config, dtype),))
    sparse = _sparse("sparse_attention", config, kv_dtype, dtype)
    layers = [
        sparse if kind is LayerKind.FULL else _recurrent(config, layer, dtype, ssm_dtype)
        for layer, kind in enumerate(config.layer_kinds)
    ]
    return CacheLayout((*layers, *[draft] * config.draft_layers), config.draft_layers)


def _carry(config: Qwen4ExpConfig, dtype: str) -> Part:
    return Part("carry", (config.stream_width,), dtype, Whole())


def _sparse(
    kind: str, config: Qwen4ExpConfig, kv_dtype: str, dtype: str, slot: tuple[Part, ...] = ()
) -> LayerCache:
    """Return the parts of a sparse layer. slot: its slot parts beside the window."""
    index = config.index
    kv = (config.kv_heads, _SIDES, PAGE_TOKENS, config.head_dim)
    return LayerCache(
        kind,
        page=(
            Part("kv", kv, kv_dtype, Heads(config.kv_heads)),
            Part("index", (PAGE_TOKENS // index.ratio, index.dim), dtype, Whole()),
        ),
        slot=(*slot, Part("index_window", (index.dim, index.ratio - 1), dtype, Whole())),
    )


def _recurrent(config: Qwen4ExpConfig, layer: int, dtype: str, ssm_dtype: str) -> LayerCache:
    """Return the parts of a recurrent layer, with a window if a table is before it."""
    keys, values = (config.key_heads, config.key_dim), (config.value_heads, config.value_dim)
    conv = (config.conv_channels, config.conv_width - 1)
    ssm = (config.value_heads, config.value_dim, config.key_dim)
    slot = (
        Part("conv", conv, dtype, Segments((keys, keys, values))),
        Part("ssm", ssm, ssm_dtype, Heads(config.value_heads)),
    )
    table = config.table_at(layer)
    if table is None:
        return LayerCache("linear_attention", slot=slot)
    window = (config.stream_width, config.table_window(table))
    return LayerCache(
        "linear_attention_with_table", slot=(*slot, Part("ple_window", window, dtype, Whole()))
    )
