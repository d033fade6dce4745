"""What every layer of one forward shares: where operators read and write, rotary angles.

Built once a forward from a `Batch`, so that layers hold no index arithmetic. Does not touch the
arena. Immutable.
"""

from dataclasses import dataclass

from torch import Tensor

from ..pycache.layout import PAGE_TOKENS
from .batch import Batch
from .config import ModelConfig
from .ops.attention import AttentionPlan, plan_attention
from .ops.conv import ConvPlan, plan_conv
from .ops.gdn import GdnPlan, plan_gdn
from .ops.rope import rotary_table


@dataclass(frozen=True)
class ForwardPlan:
    """cos, sin [T, 1, rotary_dim / 2] float32."""

    attention: AttentionPlan
    conv: ConvPlan
    gdn: GdnPlan
    cos: Tensor
    sin: Tensor

    @staticmethod
    def of(batch: Batch, config: ModelConfig) -> "ForwardPlan":
        lengths = batch.cu_seqlens.diff().tolist()
        saves = [
            (sequence, offset, slot)
            for sequence, (length, final, marks) in enumerate(
                zip(lengths, batch.write_slots.tolist(), batch.checkpoints, strict=True)
            )
            for offset, slot in ((length, final), *marks)
        ]
        cos, sin = rotary_table(batch.positions, config.rotary_dim, config.rope_theta)
        return ForwardPlan(
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
