"""The likeliest tokens of a row and their logprobs, under the model's unmodified distribution."""

import torch
from torch import Tensor


def top_logprobs(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the likeliest tokens of each row (int64) and their logprobs (float32), each [n,
    min(count, vocab)]. The likeliest comes first; of equal ones, the lower id. logits: [n, vocab]
    of any float type. The host never waits."""
    scores = logits.float()
    # A device's topk takes any of equal values. So a key is the value's order above the id's.
    bits = (scores + 0.0).view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys <<= 32
    keys -= torch.arange(scores.shape[1], device=scores.device)
    best = keys.topk(min(count, scores.shape[1])).indices
    return best, scores.gather(1, best) - scores.logsumexp(dim=-1, keepdim=True)
