"""Whole prompts through a GDN layer, from in_proj's output to out_proj's input: the chain of its
kernels.

Every stored state is the float32 state at exactly its token, stored in the course of the scan. A
checkpoint costs its bytes, and a shorter chunk. bfloat16 states are rounded, see
`reference_rounding`. Reference: `TorchOperators.gdn`.
"""

from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tasuki.model.weights.layers import GdnWeights

from .chunk import gdn_chunk
from .conv import gdn_conv
from .conv_state import store_conv_columns
from .norm import gdn_norm
from .prefill_plan import GdnPrefillPlan
from .reference_rounding import StateNoise
from .scan import gdn_scan


def gdn_prefill(
    projected: Tensor,
    weights: GdnWeights,
    config: DeltaNetConfig,
    conv: Tensor,
    ssm: Tensor,
    plan: GdnPrefillPlan,
) -> Tensor:
    """Run whole prompts through a GDN mixer, and store the planned states in their slots. Return
    [T, value_heads * value_dim] in projected's dtype.

    projected [T, conv_channels | value_heads * value_dim (z) | value_heads (b) | value_heads (a)],
    any row stride. conv [slots, channels, width - 1] and ssm [slots, value_heads, value_dim,
    key_dim] are views of the arena: dense except for the slot stride. A sequence may save into its
    read slot, but not into another's read slot. Head dimensions are powers of two from 16.
    """
    kq, v = gdn_conv(projected, weights.conv, config, conv, plan)
    store_conv_columns(projected, config, conv, plan)
    mixers, gates = gdn_chunk(projected, kq, weights, config, plan)
    noise = StateNoise(weights.number, config.first_value_head)
    gdn_scan(kq, v, mixers, gates, config, ssm, plan, noise)
    return gdn_norm(projected, v, weights.norm, config, plan)
