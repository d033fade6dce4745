"""A reader of a Qwen4-Exp config.json. Each error names the field at fault.

A published config calls its sparse layers `full_attention`; transformers calls them
`indexed_attention`. Both names are read.
"""

from tasuki.model.config import MoeShape
from tasuki.model.config_json import MOST_LISTED, ConfigFile
from tasuki.model.families.qwen3_5.reader import delta_net_config, read_layer_kinds
from tasuki.model.families.qwen4_exp.config import (
    IndexShape,
    OutputGate,
    Qwen4ExpConfig,
    StreamsShape,
    TableShape,
)
from tasuki.model.families.qwen4_exp.table.rows import multipliers, primes_from
from tasuki.model.layer_kind import LayerKind
from tasuki.pycache.layout import PAGE_TOKENS

MODEL_TYPES = frozenset({"qwen4_exp", "qwen4_exp_text"})
_KINDS = {
    "linear_attention": LayerKind.GDN,
    "full_attention": LayerKind.FULL,
    "indexed_attention": LayerKind.FULL,
}
_MOST_NGRAM, _MOST_HEADS, _MOST_STREAMS = 8, 64, 64
"""Largest sizes of an n-gram, of its heads (a prime is searched for each) and of the streams."""
_GATES = {
    "sigmoid": OutputGate.SIGMOID,
    "silu": OutputGate.SILU,
    "swish": OutputGate.SILU,
}
_ONLY: tuple[tuple[str, object], ...] = (
    ("hidden_act", "silu"),
    ("attn_output_gate", True),
    ("attention_bias", False),
    ("norm_topk_prob", True),
    ("mlp_only_layers", []),
    ("decoder_sparse_step", 1),
    ("indexer_kv_heads", 1),
)
_INDEX_FIELDS = (
    "indexer_n_heads",
    "indexer_kv_heads",
    "indexer_head_dim",
    "indexer_budget",
    "indexer_compress_ratio",
)


_INDEX_UNIT = 8
"""Elements of 16 bytes in two-byte numbers: whole parts of a page are aligned to 16 bytes."""


class _Reader:
    """A reader of one config.json."""

    def __init__(self, file: ConfigFile) -> None:
        self._file = file
        self._outer = file.outer
        self._text = file.text

    def config(self) -> Qwen4ExpConfig:
        """Return the model's shape. Raises ModelConfigError."""
        text = self._text
        if text.get("model_type") not in (None, *MODEL_TYPES):
            raise text.error(
                "model_type", f"is {text.get('model_type')!r:.40}", "use the published config.json"
            )
        for name, only in _ONLY:
            text.require(name, only)
        layers = read_layer_kinds(text, _KINDS)
        end_of_text = self._end_of_text()
        model_type = str(self._outer.get("model_type"))
        common = delta_net_config(self._file, model_type, layers, self._experts())
        return self._checked(
            Qwen4ExpConfig(
                **vars(common),
                streams=StreamsShape(
                    text.size("hc_count", 4, _MOST_STREAMS), text.size("hc_lowrank", 320)
                ),
                index=self._index(),
                output_gate=self._output_gate(),
                tables=self._tables(layers, end_of_text),
                table_taps=text.size("ple_conv_kernel_size", 4),
                end_of_text=end_of_text,
            )
        )

    def _experts(self) -> MoeShape:
        intermediate = self._text.size("moe_intermediate_size", 512)
        return MoeShape(
            experts=self._text.size("num_experts", 512, MOST_LISTED),
            chosen=self._text.size("num_experts_per_tok", 10),
            intermediate=intermediate,
            shared_intermediate=self._text.size("shared_expert_intermediate_size", 512),
        )

    def _index(self) -> IndexShape:
        text = self._text
        for name in _INDEX_FIELDS:
            if text.get(name) is None:
                raise text.error(
                    name, "is missing, which every sparse layer needs", "copy the published one"
                )
        ratio, budget = text.size("indexer_compress_ratio"), text.size("indexer_budget")
        if PAGE_TOKENS % ratio or ratio < 2:
            raise text.error(
                "indexer_compress_ratio",
                f"is {ratio}, and blocks are parts of a page of {PAGE_TOKENS} tokens",
                f"use a divisor of {PAGE_TOKENS} from 2 on",
            )
        if budget % ratio:
            raise text.error(
                "indexer_budget", "is no multiple of indexer_compress_ratio", "correct either"
            )
        return IndexShape(
            heads=text.size("indexer_n_heads"),
            dim=text.size("indexer_head_dim"),
            ratio=ratio,
            chosen=budget // ratio,
        )

    def _output_gate(self) -> OutputGate:
        name = self._text.get("output_gate_type")
        if name is None:
            return OutputGate.SILU
        if not isinstance(name, str) or name not in _GATES:
            raise self._text.error(
                "output_gate_type", f"is {name!r:.40}", f"{', '.join(_GATES)} are supported"
            )
        return _GATES[name]

    def _tables(
        self, layers: tuple[LayerKind, ...], end_of_text: int | None
    ) -> tuple[TableShape, ...]:
        text = self._text
        numbers = self._table_layers(layers)
        if not numbers:
            return ()
        if end_of_text is None:
            raise text.error(
                "eos_token_id", "is missing, which an n-gram table needs", "copy the published one"
            )
        ngram, heads = (
            text.size("ngram_size", 3, _MOST_NGRAM),
            text.size("heads_per_ngram", 8, _MOST_HEADS),
        )
        if ngram < 2:
            raise text.error("ngram_size", f"is {ngram}", "use 2 or more")
        heads *= ngram - 1
        width = text.size("ple_embed_dim", text.size("hidden_size"))
        if width % heads:
            raise text.error(
                "ple_embed_dim", f"is no multiple of the {heads} heads of a token", "correct it"
            )
        # The sizes go on through all tables of a model.
        base = text.size("ngram_vocab_size_base", 20_000_000)
        sizes = primes_from(base, heads * len(numbers))
        unit = text.size("make_ngram_vocab_size_divisible_by", 128)
        seed, vocab = self._seed(), text.size("vocab_size")
        found = []
        for table, layer in enumerate(numbers):
            own = sizes[table * heads : (table + 1) * heads]
            found.append(
                TableShape(
                    layer=layer,
                    multipliers=multipliers(seed, table, vocab, ngram),
                    sizes=tuple(own),
                    offsets=tuple(sum(own[:head]) for head in range(heads)),
                    rows=-(-sum(own) // unit) * unit,
                    dim=width // heads,
                    shards=text.size("split_ngram_parts", 512),
                )
            )
        return tuple(found)

    def _table_layers(self, layers: tuple[LayerKind, ...]) -> list[int]:
        """Return the indices of the layers with a table, ascending. The config counts from 1."""
        ids = self._text.get("ple_layer_ids") or []
        whole = isinstance(ids, list) and all(type(number) is int for number in ids)
        if not whole or not all(1 <= number <= len(layers) for number in ids):
            raise self._text.error(
                "ple_layer_ids",
                f"is {ids!r:.80}",
                f"list numbers of layers from 1 to {len(layers)}",
            )
        found = sorted({number - 1 for number in ids})
        for layer in found:
            if layers[layer] is not LayerKind.GDN:
                raise self._text.error(
                    "ple_layer_ids",
                    f"puts a table before layer {layer + 1}, which is a sparse layer",
                    "name linear_attention layers only",
                )
        return found

    def _seed(self) -> int:
        seed = self._text.get("seed", 1234)
        if type(seed) is not int or not 0 <= seed < 2**63:
            raise self._text.error("seed", f"is {seed!r:.40}", "use an integer from 0 to 2^63 - 1")
        return seed

    def _end_of_text(self) -> int | None:
        """Return the id that ends a text in the hash: the text config's first one."""
        found = self._text.get("eos_token_id", self._outer.get("eos_token_id"))
        ids = found if isinstance(found, list) else [found]
        if not ids or ids[0] is None:
            return None
        if type(ids[0]) is not int or not 0 <= ids[0] < self._text.size("vocab_size"):
            raise self._text.error(
                "eos_token_id", f"is {found!r:.80}", "use an id of the vocabulary"
            )
        return ids[0]

    def _checked(self, config: Qwen4ExpConfig) -> Qwen4ExpConfig:
        for wrong, name, what, fix in _misfits(config):
            if wrong:
                raise self._text.error(name, what, fix)
        return config


def read_config(file: ConfigFile) -> Qwen4ExpConfig:
    """Return the model's shape. Raises ModelConfigError."""
    return _Reader(file).config()


def _misfits(config: Qwen4ExpConfig) -> list[tuple[bool, str, str, str]]:
    """Return the checks of sizes that must fit each other: true if they do not, and the field, what
    it is, and the fix."""
    shape, index = config.feed_forward, config.index
    assert isinstance(shape, MoeShape)
    kinds = set(config.layer_kinds)
    return [
        (
            kinds != {LayerKind.GDN, LayerKind.FULL},
            "layer_types",
            "holds layers of one kind, so the model is no hybrid",
            "serve it with an engine for models of one layer kind",
        ),
        (
            config.query_heads % config.kv_heads != 0,
            "num_attention_heads",
            "is no multiple of num_key_value_heads",
            "correct either",
        ),
        (
            config.value_heads % config.key_heads != 0,
            "linear_num_value_heads",
            "is no multiple of linear_num_key_heads",
            "correct either",
        ),
        (
            config.rotary_dim % 2 != 0 or not 0 < config.rotary_dim <= config.head_dim,
            "partial_rotary_factor",
            f"makes {config.rotary_dim} rotary dimensions of head_dim {config.head_dim}",
            "choose an even number within the head",
        ),
        (
            config.rotary_dim > index.dim,
            "indexer_head_dim",
            f"is {index.dim}, below the {config.rotary_dim} rotary dimensions",
            "correct it or partial_rotary_factor",
        ),
        (
            PAGE_TOKENS // index.ratio * index.dim % _INDEX_UNIT != 0,
            "indexer_head_dim",
            f"is {index.dim}, and the index rows of a page are no multiple of 16 bytes",
            f"use a multiple of {_INDEX_UNIT}",
        ),
        (config.conv_width < 2, "linear_conv_kernel_dim", "is below 2", "published models have 4"),
        (config.table_taps < 2, "ple_conv_kernel_size", "is below 2", "published models have 4"),
        (config.streams.count < 2, "hc_count", "is below 2", "published models have 4"),
        (shape.chosen > shape.experts, "num_experts_per_tok", "exceeds num_experts", "lower it"),
    ]
