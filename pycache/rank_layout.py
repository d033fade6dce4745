"""What of a cache one rank keeps: the same pages and slots, with that rank's heads. Pure."""

from dataclasses import replace

from .layout import CacheLayout
from .shares import share


def key_heads(layout: CacheLayout) -> int:
    """Key heads of a GDN layer, whose convolution has channels [q | k | v]. 0 without such
    layers."""
    values = layout.value_heads * layout.value_dim
    return (layout.conv_channels - values) // (2 * layout.key_dim) if layout.key_dim else 0


def rank_layout(layout: CacheLayout, ranks: int, rank: int) -> CacheLayout:
    """layout: of one rank that has all. What a draft layer carries every rank has. Raises
    ValueError where the heads cannot be shared out."""
    keys = len(share(key_heads(layout), ranks, rank))
    values = len(share(layout.value_heads, ranks, rank))
    return replace(
        layout,
        kv_heads=len(share(layout.kv_heads, ranks, rank)),
        conv_channels=2 * keys * layout.key_dim + values * layout.value_dim,
        value_heads=values,
    )
