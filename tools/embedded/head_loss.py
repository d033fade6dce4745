"""What a draft head is trained for, and how well it drafts."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from .draft_head import DraftHead

STEP_WEIGHTS = (0.51, 0.31, 0.18)
"""Of a chain's steps, after FastMTP (arXiv 2509.18362)."""


@dataclass(frozen=True)
class Batch:
    """tokens [B, T]; embedded, hidden [B, T, hidden]: of the tokens, and the model's behind its
    final norm; head [vocab, hidden]: the model's."""

    tokens: Tensor
    embedded: Tensor
    hidden: Tensor
    head: Tensor


@dataclass(frozen=True)
class StepScores:
    """Of one step of the chains, means over tokens, on the device. divergence: of the model's
    distribution from the head's, nats. cross_entropy: of the text, nats. agreed: where both would
    choose the same token greedily. overlap: the part of the two distributions that is common, which
    bounds how many drawn drafts can hold."""

    divergence: Tensor
    cross_entropy: Tensor
    agreed: Tensor
    overlap: Tensor


def scores(head: DraftHead, batch: Batch) -> list[StepScores]:
    """Of every step with a weight."""
    with torch.no_grad():
        trunk = functional.linear(batch.hidden, batch.head).float().log_softmax(-1)
    chain = head(batch.embedded, batch.hidden, len(STEP_WEIGHTS))
    return [
        _step(step, functional.linear(found, batch.head), trunk, batch.tokens)
        for step, found in enumerate(chain)
    ]


def loss(found: list[StepScores], cross_entropy: float) -> Tensor:
    """cross_entropy: its weight beside the divergence's."""
    parts = [
        weight * (step.divergence + cross_entropy * step.cross_entropy)
        for weight, step in zip(STEP_WEIGHTS, found, strict=True)
    ]
    return torch.stack(parts).sum()


def _step(step: int, logits: Tensor, trunk: Tensor, tokens: Tensor) -> StepScores:
    """trunk: log probabilities [B, T, vocab]."""
    # No draft stands behind the first tokens, no text behind the last.
    rows = slice(step + 1, -1)
    ours, theirs = logits[:, rows].float().log_softmax(-1), trunk[:, rows]
    divergence = functional.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)
    entropy = functional.nll_loss(ours.flatten(0, 1), tokens[:, step + 2 :].flatten())
    with torch.no_grad():
        agreed = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
        overlap = torch.minimum(ours.exp(), theirs.exp()).sum(-1).mean()
    return StepScores(divergence.mean(), entropy, agreed, overlap)
