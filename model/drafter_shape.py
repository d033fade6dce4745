"""The shape of a block drafter, a small model beside the target, and its cache in the target's
pages.

A block drafter proposes several tokens in one pass. It reads the target's residual stream after
some of the target's layers. Its keys and values of a token are a function of that token's streams
alone. So they depend on the same tokens as the target's own, and belong in the same pages. It has
no state in a slot.

Pure, immutable values. Does not know files or weights.
"""

from dataclasses import dataclass, replace

from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout, LayoutField
from tasuki.pycache.parts import Heads, LayerCache, Part, layers_text

FLAG = "--drafter"
"""Command-line flag with a block drafter's folder."""
KIND = "block_drafter"
"""Name of the kind of its layers in a cache layout."""
_SIDES = 2
"""Keys and values."""


@dataclass(frozen=True, kw_only=True)
class DrafterShape:
    """Shape of a block drafter over a target of equal hidden width and vocabulary.

    layers: number of its own layers. target_layers: indices of the target's layers whose streams it
    reads, ascending. block: most tokens of a pass: the last sampled token, then masks. mask_id: the
    token id in place of an unknown token.
    """

    layers: int
    hidden: int
    intermediate: int
    query_heads: int
    kv_heads: int
    head_dim: int
    rope_theta: float
    norm_eps: float
    block: int
    mask_id: int
    target_layers: tuple[int, ...]

    @property
    def most_drafts(self) -> int:
        """Return the most tokens proposed by one pass."""
        return self.block - 1

    @property
    def constants(self) -> str:
        """Return a text of the constants that keys and values depend on, beside the weights."""
        read = ", ".join(map(str, self.target_layers))
        return f"reads layers {read}; base {self.rope_theta!r}; norms beyond {self.norm_eps!r}"

    def behind(self, target: CacheLayout, kv_dtype: str) -> CacheLayout:
        """Return the target's layout with the drafter's layers behind the target's. kv_dtype: dtype
        of keys and values, as of the target's."""
        pages = (self.kv_heads, _SIDES, PAGE_TOKENS, self.head_dim)
        kv = Part("kv", pages, kv_dtype, Heads(self.kv_heads))
        layers = (LayerCache(KIND, page=(kv,)),) * self.layers
        text = f"{layers_text(layers)}; {self.constants}"
        fields = (*target.described, LayoutField("drafter", text, FLAG))
        return replace(target, layers=target.layers + layers, fields=fields)
