"""What every layer of one forward shares: where operators read and write, rotary angles.

Built once a forward from a `Batch`, so that layers hold no index arithmetic. Does not touch the
arena. Immutable.
"""

from dataclasses import dataclass

from tasuki.model.batch import Batch
from tasuki.model.config import ModelConfig
from tasuki.model.ops.attention.reference import AttentionPlan, plan_attention
from tasuki.model.ops.attention.rope import rotary_table
from tasuki.model.ops.gdn.reference import GdnPlan, plan_gdn
from tasuki.model.ops.gdn.reference_conv import ConvPlan, plan_conv
from tasuki.pycache.layout import PAGE_TOKENS
from torch import Tensor


@dataclass(frozen=True)
class TorchPlan:
    """cos, sin [T, 1, rotary_dim / 2] float32."""

    attention: AttentionPlan
    conv: ConvPlan
    gdn: GdnPlan
    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(batch: Batch, config: ModelConfig) -> "TorchPlan":
        lengths = batch.cu_seqlens.diff().tolist()
        saves = batch.saves()
        cos, sin = rotary_table(batch.positions, config.rotary_dim, config.rope_theta)
        return TorchPlan(
            attention=plan_attention(
                lengths,
                batch.context_lens.tolist(),
                batch.page_table,
                batch.positions,
                PAGE_TOKENS,
            ),
            conv=plan_conv(lengths, batch.read_slots, saves, config.conv_width - 1),
            gdn=plan_gdn(lengths, batch.read_slots, saves),
            cos=cos,
            sin=sin,
        )
