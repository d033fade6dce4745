"""Draws tokens from adjusted logits with the kernels of sample.py and top_k_top_p.py.

Twin: `reference.sample` with scores. Launches only; no host sync.
"""

import torch
from torch import Tensor

from .logit_adjustments import AdjustedRows, adjusted
from .sample import Draws, sample
from .top_k_top_p import cut

# The kernels get this instead of -inf, because the mass of a run with only -inf would be NaN. It is
# never sampled while there is any other token: the noise is too small to change that.
_RULED_OUT = -1e30
_NO_SECOND = 1e29
"""Bound of margins. A larger margin is the distance to an excluded token."""


def sample_adjusted(
    logits: Tensor, adjustments: AdjustedRows, draws: Draws, rows: Tensor, *, cuts: bool
) -> None:
    """Fill token, logprob and margin of every row; rows[0] must be their number. logits [n, vocab]
    of any float type; row i of adjustments and of draws is row i's. cuts: true if a row has a top_k
    or a top_p. Logprobs are of the unadjusted logits."""
    if adjustments.masks_alone and not cuts:
        sample(logits, draws, rows, mask=adjustments.masks)
        return
    mass = logits.float().logsumexp(dim=-1)
    scores = adjusted(logits, adjustments).clamp_(min=_RULED_OUT)
    sample(scores, draws, rows, cut(scores, draws) if cuts else None)
    chosen = logits.gather(1, draws.token.long()[:, None])[:, 0].float()
    draws.logprob.copy_(chosen - mass)
    draws.margin.masked_fill_(draws.margin > _NO_SECOND, torch.inf)
