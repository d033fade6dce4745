"""Sampling of the next token for each sequence of a batch, in PyTorch: the reference of the
kernels.

Noise is a function of (seed, position, token id) only (gumbel.py). So any split of requests over
nodes, processes or batches samples the same tokens from the same logits. This file holds no state.
model/ops/sampling/sample.py does the same inside a CUDA graph.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from .gumbel import gumbel, noise_key
from .params import SamplingParams, TopLogprobs
from .top_logprobs import top_logprobs


class Sampled(NamedTuple):
    """A sampled token. logprob: natural logarithm of the token's probability under the unmodified
    distribution (temperature 1, no cut, no adjustment). margin: best minus second-best score, in
    units of a logit. A score is the adjusted logit plus the noise times the temperature, if it is
    above 0. The margin is infinite with one token to choose from. top: the likeliest tokens under
    the same distribution as logprob, as many as requested."""

    token: int
    logprob: float
    margin: float
    top: TopLogprobs = ()


def sample(
    logits: Tensor,
    params: Sequence[SamplingParams],
    positions: Sequence[int],
    scores: Tensor | None = None,
) -> list[Sampled]:
    """Sample one token per row, and return the results in row order. logits: [B, vocab] float32;
    positions: position of each sampled token. scores [B, vocab] float32: adjusted logits
    (logit_adjustments.py) to sample from; by default the logits."""
    drawn_from = logits if scores is None else scores
    chosen = [
        _best(drawn_from[row])
        if item.temperature == 0
        else _draw(drawn_from[row], item, positions[row])
        for row, item in enumerate(params)
    ]
    tokens = torch.tensor([token for token, _ in chosen], device=logits.device)
    logprobs = logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)
    tops = [_top(logits[row], item.top_logprobs) for row, item in enumerate(params)]
    return [
        Sampled(token, logprob, margin, top)
        for (token, margin), logprob, top in zip(chosen, logprobs.tolist(), tops, strict=True)
    ]


def _top(logits: Tensor, count: int) -> TopLogprobs:
    if not count:
        return ()
    tokens, logprobs = top_logprobs(logits[None], count)
    return tuple(zip(tokens[0].tolist(), logprobs[0].tolist(), strict=True))


def stop_ids(params: SamplingParams, eos_ids: Sequence[int]) -> frozenset[int]:
    """Return the ids of the tokens ending the answer. ignore_eos removes the model's end tokens,
    never the caller's."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_ids)


def _best(scores: Tensor) -> tuple[int, float]:
    """Return the index of the highest of the scores [vocab], the first of equal ones, and its
    margin above the second highest."""
    values = scores.topk(min(2, len(scores))).values.tolist()
    margin = values[0] - values[1] if len(values) == 2 else float("inf")
    return int(scores.argmax()), margin


def _draw(logits: Tensor, params: SamplingParams, position: int) -> tuple[int, float]:
    """Sample one token by the Gumbel-max trick: the argmax of scaled logits plus noise is a sample
    from their softmax. Return (token, margin)."""
    scaled = _restrict(logits.double().cpu() / params.temperature, params)
    noise = gumbel(noise_key(params.seed), position, len(scaled))
    token, margin = _best(scaled + noise)
    return token, margin * params.temperature


def _restrict(scaled: Tensor, params: SamplingParams) -> Tensor:
    """Return the scores after top_k and top_p. They are -inf outside the top_k likeliest tokens,
    then outside the smallest set with probability mass top_p."""
    if params.top_k == 0 and params.top_p == 1:
        return scaled
    # A stable sort cuts equal logits in the order of their ids.
    ordered, order = scaled.sort(descending=True, stable=True)
    if params.top_k:
        ordered[params.top_k :] = -torch.inf
    if params.top_p < 1:
        probabilities = ordered.softmax(dim=-1)
        before = probabilities.cumsum(dim=-1) - probabilities
        # A token stays when the mass of likelier ones is short of top_p; the likeliest always
        # stays.
        ordered[1:][before[1:] >= params.top_p] = -torch.inf
    return torch.empty_like(scaled).scatter_(0, order, ordered)
