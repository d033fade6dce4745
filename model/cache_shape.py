"""Shape of the cache of a model with Gated DeltaNet and full attention: the parts of its layers."""

from dataclasses import dataclass, replace
from enum import Enum

from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout, LayoutField
from tasuki.pycache.parts import Heads, LayerCache, Part, Segments, Whole

_SIDES = 2
"""Number of vectors a token stores per KV head: a key and a value."""
_FLAGS = {
    "conv_dtype": "--dtype",
    "carry_dtype": "--dtype",
    "kv_dtype": "--kv-dtype",
    "ssm_dtype": "--ssm-dtype",
}
"""Command-line flag setting each field, by field."""
_NUMBERS = (
    *("kv_heads", "head_dim", "conv_channels", "conv_columns", "value_heads", "value_dim"),
    *("key_dim", "carry_width"),
)


class LayerKind(Enum):
    """Kind of a model layer. FULL: full attention, with pages. GDN: Gated DeltaNet, with a state.
    DRAFT: the layer for drafting tokens, after the model's own layers. It has attention, and a slot
    column with the final hidden state of the previous token."""

    FULL = "full_attention"
    GDN = "linear_attention"
    DRAFT = "draft"


MODEL_KINDS = (LayerKind.FULL, LayerKind.GDN)
"""Kinds of the layers in a model's config, full attention and GDN. A draft layer is not among
them."""


@dataclass(frozen=True)
class CacheShape:
    """Numbers of a model's cache, and the layout they make.

    Parts: kv of a page in a layer [kv_heads, 2 (key, value), PAGE_TOKENS, head_dim]. conv of a slot
    [channels q | k | v, conv_columns]. ssm, the recurrent state, [value_heads, value_dim, key_dim].
    carry of a draft layer [carry_width]: the final hidden state of the last token.

    layer_kinds: the model's layers, then DRAFT if there is a draft layer. kv_dtype: a dtype, or
    FP8_ROWS. carry_width: 0 without a draft layer.
    """

    layer_kinds: tuple[LayerKind, ...]
    kv_heads: int
    head_dim: int
    kv_dtype: str
    key_heads: int
    conv_columns: int
    conv_dtype: str
    value_heads: int
    value_dim: int
    key_dim: int
    ssm_dtype: str
    carry_width: int = 0
    carry_dtype: str = "float32"

    @property
    def conv_channels(self) -> int:
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim

    @property
    def draft_layers(self) -> int:
        return self.layer_kinds.count(LayerKind.DRAFT)

    def layout(self) -> CacheLayout:
        """Return the layout with these parts. Nodes compare the numbers as they always did, so
        nodes and folders of earlier versions stay usable."""
        caches = {kind: self._layer(kind) for kind in set(self.layer_kinds)}
        layers = tuple(caches[kind] for kind in self.layer_kinds)
        return CacheLayout(layers, self.draft_layers, tuple(self._fields()))

    def _layer(self, kind: LayerKind) -> LayerCache:
        if kind is LayerKind.GDN:
            keys, values = (self.key_heads, self.key_dim), (self.value_heads, self.value_dim)
            conv = (self.conv_channels, self.conv_columns)
            ssm = (self.value_heads, self.value_dim, self.key_dim)
            return LayerCache(
                kind.value,
                slot=(
                    Part("conv", conv, self.conv_dtype, Segments((keys, keys, values))),
                    Part("ssm", ssm, self.ssm_dtype, Heads(self.value_heads)),
                ),
            )
        shape = (self.kv_heads, _SIDES, PAGE_TOKENS, self.head_dim)
        attention = LayerCache(
            kind.value, page=(Part("kv", shape, self.kv_dtype, Heads(self.kv_heads)),)
        )
        if kind is LayerKind.FULL:
            return attention
        carry = Part("carry", (self.carry_width,), self.carry_dtype, Whole())
        return replace(attention, slot=(carry,))

    def _fields(self) -> list[LayoutField]:
        own = ",".join(kind.value for kind in self.layer_kinds if kind is not LayerKind.DRAFT)
        return [LayoutField("layer_kinds", own)] + [
            LayoutField(name, str(getattr(self, name)), _FLAGS.get(name, ""))
            for name in (*_NUMBERS, *_FLAGS)
        ]
