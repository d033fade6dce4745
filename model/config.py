"""The shape of a Qwen3.5-family text model, read from a checkpoint folder's config.json.

Owns the meaning of the published configs: nested and flat layouts, defaults, layer kinds,
end-of-text ids. Does not know weights or memory. Immutable, so free to share between threads.
Invariant: at least one full-attention and one GDN layer; every size is positive.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.pycache.layout import CacheLayout

from .cache_shape import MODEL_KINDS, CacheShape, LayerKind
from .config_json import ConfigFields, ModelConfigError, RopeSettings, Yarn

_DENSE_TYPES = frozenset({"qwen3_5", "qwen3_5_text"})
_MOE_TYPES = frozenset({"qwen3_5_moe", "qwen3_5_moe_text"})

_MOST_TOKENS = 2**31
"""Upper limit of token ids, because ids are int32 everywhere."""

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


@dataclass(frozen=True)
class DenseShape:
    """Shape of a dense feed-forward: a SwiGLU block of inner width `intermediate`."""

    intermediate: int


@dataclass(frozen=True)
class MoeShape:
    """Shape of a mixture of experts: `experts` SwiGLU blocks of inner width `intermediate`,
    `chosen` of them for each token, and one shared block. held: range of experts stored on this
    rank; None: all experts."""

    experts: int
    chosen: int
    intermediate: int
    shared_intermediate: int
    held: range | None = None

    @property
    def own(self) -> range:
        """Return the range of experts stored on this rank."""
        return range(self.experts) if self.held is None else self.held


@dataclass(frozen=True)
class ModelConfig:
    """Shape of a model. Sizes count elements; rope_theta and norm_eps are as published; eos_ids are
    ascending. yarn: YaRN settings; None: the trained rotary angles. max_position: tokens of the
    longest context, as YaRN extends it. draft_layers: number of draft layers served, 0 or 1. It
    does not follow the checkpoint: load() sets it to 0. head_rows: the range of the vocabulary with
    logits computed on this rank; None: all. head_block: number of head rows with one common scale;
    no rank has only a part of such a block. With several ranks, heads and widths are this rank's
    own (weights/shard.py)."""

    model_type: str
    vocab: int
    hidden: int
    layer_kinds: tuple[LayerKind, ...]
    query_heads: int
    kv_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    yarn: Yarn | None
    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    feed_forward: DenseShape | MoeShape
    norm_eps: float
    tied: bool
    max_position: int
    eos_ids: tuple[int, ...]
    draft_layers: int = 0
    head_rows: range | None = None
    head_block: int = 1

    @staticmethod
    def load(directory: Path | str) -> "ModelConfig":
        """Return the model's shape, read from a folder's config.json and, if present,
        generation_config.json. Raises ModelConfigError."""
        path = Path(directory) / "config.json"
        generation = Path(directory) / "generation_config.json"
        extra = _read_json(generation) if generation.exists() else {}
        return ModelConfig.from_dict(_read_json(path), extra, source=str(path))

    @staticmethod
    def from_dict(
        raw: dict[str, Any], generation: dict[str, Any] | None = None, source: str = "config"
    ) -> "ModelConfig":
        """Return the model's shape, read from the parsed config.json (`raw`) and
        generation_config.json. source: the config's name in error messages."""
        return _Reader(raw, generation or {}, source).config()

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def constants(self) -> str:
        """Return a text of the constants with an effect on results, but none on weights or the
        cache's layout. They are rotary settings, norm_eps and the number of chosen experts. Two
        nodes compare their texts."""
        stretched = "as trained" if self.yarn is None else str(self.yarn)
        found = f"{self.rotary_dim} elements of base {self.rope_theta!r}, {stretched}"
        found += f"; norms beyond {self.norm_eps!r}"
        if isinstance(self.feed_forward, MoeShape):
            found += f"; {self.feed_forward.chosen} experts a token"
        return found

    @property
    def conv_channels(self) -> int:
        """Return the number of channels in a GDN layer's convolution: the width of its [q | k |
        v]."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def cache_layout(self, kv_dtype: str, conv_dtype: str, ssm_dtype: str) -> CacheLayout:
        """Return the cache layout for this model. The three dtypes are names known to
        `pycache.parts.itemsize`."""
        drafts = self.draft_layers > 0
        return CacheShape(
            layer_kinds=self.layer_kinds + (LayerKind.DRAFT,) * self.draft_layers,
            kv_heads=self.kv_heads,
            head_dim=self.head_dim,
            kv_dtype=kv_dtype,
            key_heads=self.key_heads,
            conv_columns=self.conv_width - 1,
            conv_dtype=conv_dtype,
            value_heads=self.value_heads,
            value_dim=self.value_dim,
            key_dim=self.key_dim,
            ssm_dtype=ssm_dtype,
            carry_width=self.hidden if drafts else 0,
            carry_dtype=conv_dtype,
        ).layout()


def _read_json(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ModelConfigError(f"{path}: is nested too deep; fetch the file again") from error
    except OSError as error:
        raise ModelConfigError(
            f"{path}: cannot be read ({error.strerror}); give a folder in Hugging Face layout"
        ) from error
    except ValueError as error:
        raise ModelConfigError(f"{path}: is not JSON ({error}); fetch the file again") from error
    if not isinstance(raw, dict):
        raise ModelConfigError(f"{path}: holds no JSON object; fetch the file again")
    return raw


class _Reader:
    """A reader of one config.json. It knows the meaning of the fields. Each error names the field
    at fault."""

    def __init__(self, raw: dict[str, Any], generation: dict[str, Any], source: str) -> None:
        self._outer = ConfigFields(raw, source)
        self._generation = generation
        self._model_type = self._supported_type(self._outer)
        text = raw.get("text_config", raw)
        if not isinstance(text, dict):
            raise self._outer.error(
                "text_config", "is not an object", "copy it from the published config"
            )
        self._text = ConfigFields(text, source)
        if text is not raw and "model_type" in text:
            self._supported_type(self._text)

    def config(self) -> ModelConfig:
        text = self._text
        head_dim = text.size("head_dim", 256)
        rope = RopeSettings.of(text, self._outer)
        config = ModelConfig(
            model_type=self._model_type,
            vocab=text.size("vocab_size"),
            hidden=text.size("hidden_size"),
            layer_kinds=self._layer_kinds(),
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
            feed_forward=self._feed_forward(),
            norm_eps=text.number("rms_norm_eps", 1e-6),
            tied=self._tied(),
            max_position=rope.positions,
            eos_ids=self._eos_ids(),
        )
        self._check(config)
        return config

    def _supported_type(self, holder: ConfigFields) -> str:
        name = holder.get("model_type")
        if name == "qwen4_exp":
            raise holder.error(
                "model_type",
                "is qwen4_exp, another architecture (hyper-connections, sparse attention)",
                "serve a qwen3_5* checkpoint: Qwen3.5, Qwen3.6 or Qwen3.8",
            )
        if name not in _DENSE_TYPES | _MOE_TYPES:
            known = ", ".join(sorted(_DENSE_TYPES | _MOE_TYPES))
            raise holder.error("model_type", f"is {name!r}, which is unknown here", f"use {known}")
        return str(name)

    def _layer_kinds(self) -> tuple[LayerKind, ...]:
        layers = self._text.size("num_hidden_layers")
        names = self._text.get("layer_types")
        if names is None:
            interval = self._text.size("full_attention_interval", 4)
            return tuple(
                LayerKind.GDN if (layer + 1) % interval else LayerKind.FULL
                for layer in range(layers)
            )
        if not isinstance(names, list) or len(names) != layers:
            raise self._text.error(
                "layer_types", "does not list num_hidden_layers entries", "make the two agree"
            )
        known = {kind.value: kind for kind in MODEL_KINDS}
        if not all(isinstance(name, str) and name in known for name in names):
            raise self._text.error(
                "layer_types", f"holds a kind other than {', '.join(known)}", "remove it"
            )
        return tuple(known[name] for name in names)

    def _feed_forward(self) -> DenseShape | MoeShape:
        if self._model_type in _DENSE_TYPES:
            return DenseShape(self._text.size("intermediate_size"))
        intermediate = self._text.size("moe_intermediate_size")
        return MoeShape(
            experts=self._text.size("num_experts"),
            chosen=self._text.size("num_experts_per_tok"),
            intermediate=intermediate,
            shared_intermediate=self._text.size("shared_expert_intermediate_size", intermediate),
        )

    def _eos_ids(self) -> tuple[int, ...]:
        ids: set[int] = set()
        for holder in (self._outer, self._text, self._generation):
            found = holder.get("eos_token_id")
            listed = found if isinstance(found, list) else [] if found is None else [found]
            if not all(type(item) is int and abs(item) < _MOST_TOKENS for item in listed):
                raise self._text.error(
                    "eos_token_id", f"is {found!r:.80}", "use an id or a list of ids"
                )
            ids.update(listed)
        return tuple(sorted(ids))

    def _check(self, config: ModelConfig) -> None:
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

    def _tied(self) -> bool:
        inner = self._text.flag("tie_word_embeddings", default=False)
        return self._outer.flag("tie_word_embeddings", default=inner)
