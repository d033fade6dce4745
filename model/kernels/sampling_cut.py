"""Cuts each row's distribution to its top_k likeliest tokens, then to the fewest of mass top_p.

Shapes: logits [B, vocab]. Twin: `model.sampler._restrict`, row by row. Torch operators on the whole
batch, without host syncs, so that a CUDA graph may hold them; sorting every row costs more than the
rest of sampling, so graphs exist with and without this step.
"""

import torch
from torch import Tensor

from .sampling import Draws


def cut(logits: Tensor, draws: Draws) -> Tensor:
    """The logits as [B, vocab] float32, -inf where a token is cut. A row with top_k 0 and top_p 1
    keeps every token."""
    # Stable, so that equal logits are cut in the order of their ids.
    ordered, order = logits.float().sort(dim=-1, descending=True, stable=True)
    rank = torch.arange(ordered.shape[-1], device=logits.device)
    top_k = draws.top_k[:, None]
    ordered = ordered.masked_fill((rank >= top_k) & (top_k > 0), -torch.inf)
    heat = draws.temperature.masked_fill(draws.temperature == 0, 1)
    probabilities = (ordered / heat[:, None]).softmax(dim=-1)
    before = probabilities.cumsum(dim=-1) - probabilities
    # A token stays when the mass of likelier ones is short of top_p; the likeliest always stays.
    top_p = draws.top_p[:, None]
    ordered = ordered.masked_fill((before >= top_p) & (rank > 0) & (top_p < 1), -torch.inf)
    return torch.empty_like(ordered).scatter_(1, order, ordered)
