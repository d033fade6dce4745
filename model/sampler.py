"""Draws the next token of each sequence of a batch.

Noise is a function of (seed, position) alone: any split of requests over nodes, processes or
batches draws the same tokens from the same logits. Holds no state.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .sampling import SamplingParams


@dataclass(frozen=True)
class Sampled:
    """logprob: natural, of the token under the unmodified distribution (temperature 1, no cut).
    margin: top-1 minus top-2 of the unmodified logits; infinite when the vocabulary has one
    token."""

    token: int
    logprob: float
    margin: float


def sample(
    logits: Tensor, params: Sequence[SamplingParams], positions: Sequence[int]
) -> list[Sampled]:
    """One token a row. logits [B, vocab] float32; positions: where each drawn token will stand."""
    best = logits.topk(min(2, logits.shape[-1]), dim=-1)
    tokens = [
        int(best.indices[row, 0]) if item.temperature == 0 else _draw(logits[row], item, position)
        for row, (item, position) in enumerate(zip(params, positions, strict=True))
    ]
    chosen = logits.gather(1, torch.tensor(tokens, device=logits.device)[:, None])[:, 0]
    logprobs = (chosen - logits.logsumexp(dim=-1)).tolist()
    if best.values.shape[-1] == 2:
        margins = (best.values[:, 0] - best.values[:, 1]).tolist()
    else:
        margins = [float("inf")] * len(tokens)
    return [Sampled(*item) for item in zip(tokens, logprobs, margins, strict=True)]


def stop_ids(params: SamplingParams, eos_ids: Sequence[int]) -> frozenset[int]:
    """Tokens that end the answer. ignore_eos drops the model's own, never the caller's."""
    return frozenset(params.stop_token_ids) | frozenset(() if params.ignore_eos else eos_ids)


def _draw(logits: Tensor, params: SamplingParams, position: int) -> int:
    """The Gumbel-max trick: argmax of scaled logits plus noise is a draw from their softmax."""
    scaled = _restrict(logits.double().cpu() / params.temperature, params)
    generator = torch.Generator().manual_seed(_noise_seed(params.seed, position))
    uniform = torch.rand(scaled.shape, generator=generator, dtype=torch.float64)
    gumbel = -(-uniform.clamp_min(torch.finfo(torch.float64).tiny).log()).log()
    return int((scaled + gumbel).argmax())


def _restrict(scaled: Tensor, params: SamplingParams) -> Tensor:
    """-inf for tokens outside the top_k likeliest, then outside the smallest set of mass top_p."""
    if params.top_k == 0 and params.top_p == 1:
        return scaled
    # Stable, so that equal logits are cut in the order of their ids.
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


def _noise_seed(seed: int, position: int) -> int:
    """Hashed, so that neighbouring seeds and positions share nothing."""
    digest = hashlib.sha256(f"{seed}/{position}".encode()).digest()
    return int.from_bytes(digest[:7], "little")
