"""Kinds of the layers of a model with Gated DeltaNet and full attention."""

from enum import Enum


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
