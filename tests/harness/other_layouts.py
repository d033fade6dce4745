"""Layouts of other families: only their parts differ. Their heads divide among 1, 2 and 4 ranks."""

from dataclasses import replace

from tasuki.pycache.layout import CacheLayout
from tasuki.pycache.parts import Heads, LayerCache, Part, Segments, Whole

KV = Part("kv", (2, 2, 64, 8), "bfloat16", Heads(2))
INDEX = Part("index", (16, 24), "bfloat16", Whole())
WINDOW = Part("index_window", (24, 3), "bfloat16", Whole())
CONV = Part("conv", (256, 3), "bfloat16", Segments(((4, 16), (4, 16), (8, 16))))
MATRIX = Part("ssm", (8, 16, 16), "float32", Heads(8))
STATE = LayerCache("state", slot=(CONV, MATRIX))
SPARSE = LayerCache("sparse", (KV, INDEX), (WINDOW,))
OTHERS = {
    "block drafter by token": CacheLayout(
        (STATE, LayerCache("full", (KV,)))
        + (LayerCache("drafter", (Part("kv", (4, 2, 64, 24), "float32", Heads(4)),)),) * 3
    ),
    "routed experts by token": CacheLayout(
        (STATE, LayerCache("full", (KV, Part("experts", (64, 5, 2), "int16", Whole()))))
    ),
    "scales beside keys": CacheLayout(
        (STATE, LayerCache("full", (KV, replace(KV, name="more", shape=(2, 64, 5)), INDEX)))
    ),
    "sparse attention and a table": CacheLayout(
        (
            STATE,
            replace(STATE, slot=(CONV, MATRIX, Part("window", (80, 9), "float32", Whole()))),
            SPARSE,
            replace(SPARSE, slot=(Part("carry", (80,), "bfloat16", Whole()), WINDOW)),
        ),
        draft_layers=1,
    ),
    "latents without heads": CacheLayout(
        (
            replace(STATE, slot=(replace(CONV, cut=Segments(((4, 16), (4, 16), (8, 16)))), MATRIX)),
            LayerCache("latent", (Part("latent", (64, 40), "bfloat16", Whole()),)),
        )
    ),
}
"""By the reason for the parts."""
