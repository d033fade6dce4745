"""Sampling from adjusted logits with the kernels of sample.py and top_k_top_p.py.

Reference: `reference.sample` with scores. It only launches kernels; the host never waits.
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
"""Largest margin between two tokens that may be sampled. A larger margin is the distance to an
excluded token, and counts as infinite."""


def sample_adjusted(
    logits: Tensor, adjustments: AdjustedRows, draws: Draws, rows: Tensor, *, cuts: bool
) -> None:
    """Sample one token for each row: fill token, logprob and margin of `draws`. logits: [n, vocab]
    of any float type; adjustments: logit adjustments of the same rows; rows[0] must be n. cuts:
    true if any row has a top_k or a top_p. Logprobs are of the unadjusted logits."""
    if adjustments.masks_alone and not cuts:
        sample(logits, draws, rows, mask=adjustments.masks)
        return
    mass = logits.float().logsumexp(dim=-1)
    scores = adjusted(logits, adjustments).clamp_(min=_RULED_OUT)
    sample(scores, draws, rows, cut(scores, draws) if cuts else None)
    chosen = logits.gather(1, draws.token.long()[:, None])[:, 0].float()
    draws.logprob.copy_(chosen - mass)
    draws.margin.masked_fill_(draws.margin > _NO_SECOND, torch.inf)
