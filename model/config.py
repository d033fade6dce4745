"""The shape of a model, as read from a checkpoint's config.json by its family.

Owns the fields of any family (ModelConfig), and those of the families of Gated DeltaNet and full
attention (DeltaNetConfig), which the common operators know. Does not know weights or memory.
Immutable, so free to share between threads. Invariant: every size is positive.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout, LayoutField
from tasuki.pycache.parts import Heads, LayerCache, Part, Segments, Whole

from .config_json import Yarn
from .drafter_shape import DrafterShape
from .layer_kind import LayerKind


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


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ABC):
    """Shape of a model of any family. Sizes count elements; norm_eps is as published; eos_ids are
    ascending. max_position: tokens of the longest context. draft_layers: number of draft layers
    served, 0 or 1. It does not follow the checkpoint: load_config() sets it to 0. drafter: shape of
    the block drafter beside the model; None: none. head_rows: the range of the vocabulary with
    logits computed on this rank; None: all. head_block: number of head rows with one common scale;
    no rank has only a part of such a block. With several ranks, heads and widths are this rank's
    own (weights/shard.py)."""

    model_type: str
    vocab: int
    hidden: int
    norm_eps: float
    tied: bool
    max_position: int
    eos_ids: tuple[int, ...]
    draft_layers: int = 0
    drafter: DrafterShape | None = None
    head_rows: range | None = None
    head_block: int = 1

    @property
    @abstractmethod
    def layers(self) -> int:
        """Return the number of layers, without the draft layer."""

    @property
    @abstractmethod
    def constants(self) -> str:
        """Return a text of the constants with an effect on results, but none on weights or the
        cache's layout. Two nodes compare their texts."""

    @abstractmethod
    def own_layout(self, kv_dtype: str, conv_dtype: str, ssm_dtype: str) -> CacheLayout:
        """Return the cache layout of the model's own layers. The three dtypes are names known to
        `pycache.parts.itemsize`."""

    def cache_layout(self, kv_dtype: str, conv_dtype: str, ssm_dtype: str) -> CacheLayout:
        """Return the cache layout for this model: its own layers, then a block drafter's."""
        own = self.own_layout(kv_dtype, conv_dtype, ssm_dtype)
        return own if self.drafter is None else self.drafter.behind(own, kv_dtype)

    @property
    def stream_width(self) -> int:
        """Return the width of the residual stream of a token."""
        return self.hidden

    @property
    def ids_before(self) -> int:
        """Return the number of token ids from before a forward's first token that it needs."""
        return 0

    @property
    def own_vocab(self) -> int:
        """Return the number of logits computed on this rank for each row."""
        return self.vocab if self.head_rows is None else len(self.head_rows)


@dataclass(frozen=True, kw_only=True)
class DeltaNetConfig(ModelConfig):
    """Shape of a model of Gated DeltaNet (GDN) and gated full-attention layers. rope_theta is as
    published. yarn: YaRN settings, which stretch max_position; None: the trained rotary angles.
    first_value_head: number, among all ranks' value heads, of this rank's first one. Invariant: at
    least one layer of each kind."""

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
    first_value_head: int = 0

    @property
    def layers(self) -> int:
        return len(self.layer_kinds)

    @property
    def constants(self) -> str:
        # They are rotary settings, norm_eps and the number of chosen experts.
        stretched = "as trained" if self.yarn is None else str(self.yarn)
        found = f"{self.rotary_dim} elements of base {self.rope_theta!r}, {stretched}"
        found += f"; norms beyond {self.norm_eps!r}"
        if isinstance(self.feed_forward, MoeShape):
            found += f"; {self.feed_forward.chosen} experts a token"
        return found

    @property
    def conv_channels(self) -> int:
        """Return the channels of a GDN layer's convolution: the width of its [q | k | v]."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    def own_layout(self, kv_dtype: str, conv_dtype: str, ssm_dtype: str) -> CacheLayout:
        # Keys and values of a page; channels [q | k | v] and matrix of a GDN layer; the last
        # token's final hidden state for a draft layer.
        keys, values = (self.key_heads, self.key_dim), (self.value_heads, self.value_dim)
        shape = self.conv_channels, self.conv_width - 1
        conv = Part("conv", shape, conv_dtype, Segments((keys, keys, values)))
        ssm = Part("ssm", (*values, self.key_dim), ssm_dtype, Heads(self.value_heads))
        pages = self.kv_heads, 2, PAGE_TOKENS, self.head_dim
        kv = Part("kv", pages, kv_dtype, Heads(self.kv_heads))
        carry = Part("carry", (self.hidden,), conv_dtype, Whole())
        caches = {
            LayerKind.GDN: LayerCache(LayerKind.GDN.value, slot=(conv, ssm)),
            LayerKind.FULL: LayerCache(LayerKind.FULL.value, page=(kv,)),
            LayerKind.DRAFT: LayerCache(LayerKind.DRAFT.value, page=(kv,), slot=(carry,)),
        }
        kinds = self.layer_kinds + (LayerKind.DRAFT,) * self.draft_layers
        # The texts of all versions, so that nodes pair and kept folders stay of use.
        texts = {
            "layer_kinds": ",".join(kind.value for kind in self.layer_kinds),
            **{"kv_heads": self.kv_heads, "head_dim": self.head_dim},
            **{"conv_channels": shape[0], "conv_columns": shape[1]},
            **{"value_heads": values[0], "value_dim": values[1], "key_dim": self.key_dim},
            "carry_width": self.hidden if self.draft_layers else 0,
        }
        fields = (
            *(LayoutField(name, str(text)) for name, text in texts.items()),
            LayoutField("conv_dtype", conv_dtype, "--dtype"),
            LayoutField("carry_dtype", conv_dtype, "--dtype"),
            LayoutField("kv_dtype", kv_dtype, "--kv-dtype"),
            LayoutField("ssm_dtype", ssm_dtype, "--ssm-dtype"),
        )
        return CacheLayout(tuple(caches[kind] for kind in kinds), self.draft_layers, fields)
