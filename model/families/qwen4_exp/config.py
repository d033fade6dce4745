"""The shape of a Qwen4-Exp text model, beside the sizes that every hybrid model has.

Immutable, so free to share between threads. Invariants: every attention layer is sparse; a table is
before a recurrent layer only.
"""

from dataclasses import dataclass
from enum import Enum

from tasuki.model.config import DeltaNetConfig


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
