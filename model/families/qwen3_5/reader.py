"""The reader of the family's config.json: its meaning, defaults and refusals.

Knows nested and flat files, published names of layer kinds, and the only supported values of fields
that would otherwise be ignored. Each error names the file, the field and the fix.
"""

from collections.abc import Mapping

from tasuki.model.config import DeltaNetConfig, DenseShape, MoeShape
from tasuki.model.config_json import MOST_LISTED, ConfigFields, ConfigFile, RopeSettings
from tasuki.model.layer_kind import MODEL_KINDS, LayerKind

DENSE_TYPES = frozenset({"qwen3_5", "qwen3_5_text"})
MOE_TYPES = frozenset({"qwen3_5_moe", "qwen3_5_moe_text"})

_KINDS = {kind.value: kind for kind in MODEL_KINDS}
_ONLY: tuple[tuple[str, object], ...] = (
    ("hidden_act", "silu"),
    ("attn_output_gate", True),
    ("output_gate_type", "swish"),
    ("attention_bias", False),
)
_ONLY_OF_EXPERTS: tuple[tuple[str, object], ...] = (
    ("norm_topk_prob", True),
    ("mlp_only_layers", []),
    ("decoder_sparse_step", 1),
)
"""The only supported value of each field, in configs of models with experts. Without a check,
another value would be ignored."""


def read_config(file: ConfigFile) -> DeltaNetConfig:
    """Return the model's shape. Raises ModelConfigError."""
    return ConfigReader(file, DENSE_TYPES, MOE_TYPES).config()


def read_layer_kinds(text: ConfigFields, known: Mapping[str, LayerKind]) -> tuple[LayerKind, ...]:
    """Return the kinds of a config's layers, from `layer_types` or `full_attention_interval`.
    known: the published names. Raises ModelConfigError."""
    layers = text.size("num_hidden_layers", most=MOST_LISTED)
    names = text.get("layer_types")
    if names is None:
        interval = text.size("full_attention_interval", 4)
        return tuple(
            LayerKind.GDN if (layer + 1) % interval else LayerKind.FULL for layer in range(layers)
        )
    if not isinstance(names, list) or len(names) != layers:
        raise text.error(
            "layer_types", "does not list num_hidden_layers entries", "make the two agree"
        )
    if not all(isinstance(name, str) and name in known for name in names):
        raise text.error("layer_types", f"holds a kind other than {', '.join(known)}", "remove it")
    return tuple(known[name] for name in names)


def delta_net_config(
    file: ConfigFile,
    model_type: str,
    layer_kinds: tuple[LayerKind, ...],
    feed_forward: DenseShape | MoeShape,
) -> DeltaNetConfig:
    """Return the shape of a model with Gated DeltaNet and attention. Raises ModelConfigError. Does
    not check that its sizes fit each other."""
    text = file.text
    head_dim = text.size("head_dim", 256)
    rope = RopeSettings.of(text, file.outer)
    return DeltaNetConfig(
        model_type=model_type,
        vocab=text.size("vocab_size"),
        hidden=text.size("hidden_size"),
        layer_kinds=layer_kinds,
        query_heads=text.size("num_attention_heads"),
        kv_heads=text.size("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=int(head_dim * rope.partial),
        rope_theta=rope.theta,
        yarn=rope.yarn,
        key_heads=text.size("linear_num_key_heads", 16),
        value_heads=text.size("linear_num_value_heads", 32),
        key_dim=text.size("linear_key_head_dim", 128),
        value_dim=text.size("linear_value_head_dim", 128),
        conv_width=text.size("linear_conv_kernel_dim", 4),
        feed_forward=feed_forward,
        norm_eps=text.number("rms_norm_eps", 1e-6),
        tied=file.is_tied(),
        max_position=rope.positions,
        eos_ids=file.eos_ids(),
    )


class ConfigReader:
    """A reader of one config.json, by its fields' meaning. Each error names the field."""

    def __init__(self, file: ConfigFile, dense: frozenset[str], experts: frozenset[str]) -> None:
        """dense, experts: values of model_type of models without and with experts."""
        self._dense = dense
        self._experts = experts
        self._file = file
        self._text = file.text
        self._model_type = self._supported_type(file.outer)
        if file.is_nested and "model_type" in file.text:
            self._supported_type(file.text)

    def config(self) -> DeltaNetConfig:
        kinds = read_layer_kinds(self._text, _KINDS)
        config = delta_net_config(self._file, self._model_type, kinds, self._feed_forward())
        self._check(config)
        return config

    def _supported_type(self, holder: ConfigFields) -> str:
        name = holder.get("model_type")
        if name not in self._dense | self._experts:
            known = ", ".join(sorted(self._dense | self._experts))
            raise holder.error("model_type", f"is {name!r}, which is unknown here", f"use {known}")
        return str(name)

    def _feed_forward(self) -> DenseShape | MoeShape:
        if self._model_type in self._dense:
            return DenseShape(self._text.size("intermediate_size"))
        intermediate = self._text.size("moe_intermediate_size")
        return MoeShape(
            experts=self._text.size("num_experts", most=MOST_LISTED),
            chosen=self._text.size("num_experts_per_tok"),
            intermediate=intermediate,
            shared_intermediate=self._text.size("shared_expert_intermediate_size", intermediate),
        )

    def _check(self, config: DeltaNetConfig) -> None:
        for kind in MODEL_KINDS:
            if kind not in config.layer_kinds:
                raise self._text.error(
                    "layer_types",
                    f"holds no {kind.value} layer, so the model is no hybrid",
                    "serve it with an engine for models of one layer kind",
                )
        if config.query_heads % config.kv_heads:
            raise self._text.error(
                "num_attention_heads", "is no multiple of num_key_value_heads", "correct either"
            )
        if config.value_heads % config.key_heads:
            raise self._text.error(
                "linear_num_value_heads", "is no multiple of linear_num_key_heads", "correct either"
            )
        if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
            raise self._text.error(
                "partial_rotary_factor",
                f"makes {config.rotary_dim} rotary dimensions of head_dim {config.head_dim}",
                "choose an even number within the head",
            )
        if config.conv_width < 2:
            raise self._text.error(
                "linear_conv_kernel_dim", "is below 2", "published models have 4"
            )
        shape = config.feed_forward
        if isinstance(shape, MoeShape) and shape.chosen > shape.experts:
            raise self._text.error("num_experts_per_tok", "exceeds num_experts", "lower it")
        for name, only in _ONLY + (_ONLY_OF_EXPERTS if isinstance(shape, MoeShape) else ()):
            self._text.require(name, only)
