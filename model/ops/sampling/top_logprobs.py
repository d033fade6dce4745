"""The likeliest tokens of a row and their logprobs, of the distribution as the model gave it."""

import torch
from torch import Tensor


def top_logprobs(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return (tokens int64, logprobs float32), each [n, min(count, vocab)], the likeliest first,
    the lower id first of equals. logits [n, vocab] of any float type. Waits for nothing on the
    host."""
    scores = logits.float()
    # A device's topk takes any of equal values. So a key is the value's order above the id's.
    bits = (scores + 0.0).view(torch.int32)
    keys = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    keys <<= 32
    keys -= torch.arange(scores.shape[1], device=scores.device)
    best = keys.topk(min(count, scores.shape[1])).indices
    return best, scores.gather(1, best) - scores.logsumexp(dim=-1, keepdim=True)
