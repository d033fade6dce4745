"""Work on logits besides sampling: adjustments by batch index, and scores of prompt tokens."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from tasuki.engine.forward_plan import ForwardPlan, PlanError
from tasuki.model.config import ModelConfig
from tasuki.model.grammar.grammar_compiler import GrammarCompiler
from tasuki.model.ops.sampling.logit_adjustments import (
    AdjustedRows,
    LogitAdjuster,
    TokensBefore,
    adjusted,
)
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.prompt_scores import HeadOf, ScoredRows, score_rows
from tasuki.model.ops.sampling.reference import Sampled, stop_ids

from .rows import ResolvedRows


def logit_adjuster(
    sampling: SamplingParams, before: TokensBefore, model: ModelConfig, grammars: GrammarCompiler
) -> LogitAdjuster:
    """Return the adjuster of one sequence's logits after the tokens `before`. REQUIRES: the
    sampling parameters adjust logits, and the grammar was compiled before. A cached grammar is
    ready in microseconds; one dropped since is compiled again."""
    constraint = None
    if sampling.grammar is not None:
        constraint = grammars.constraint(sampling.grammar, before.output.tolist())
    ends = stop_ids(sampling, model.eos_ids)
    return LogitAdjuster(
        sampling, ends, model.vocab, before, constraint, grammars.unfinished_tokens
    )


class SampledTogether(Protocol):
    """Sampling from adjusted logits by ranks sharing a model. leads: True on exactly one rank; only
    it has the adjustments."""

    leads: bool

    def agreed(self, sampled: Sequence[Sampled]) -> list[Sampled]:
        """Return the leading rank's sampled tokens for the same rows. sampled: this rank's tokens.
        Every rank calls it for the same rows."""

    def of_leader(self, sampled: Tensor) -> Tensor:
        """Return the leading rank's results of sampling, on the device. Other ranks' `sampled` may
        hold no sampled tokens."""


class RowAdjustments:
    """The adjustments of each sequence's logits before sampling, and the tokens they depend on.

    Owns a `LogitAdjuster` for every batch index with a request for one; knows neither pages nor
    forwards. Thread rule: the runner's. Invariant: the user of an adjuster appends every sampled
    token of its sequence, in order.
    """

    def __init__(self, model: ModelConfig, grammars: GrammarCompiler) -> None:
        self._model = model
        self._grammars = grammars
        self._adjusters: dict[int, LogitAdjuster] = {}

    def apply(self, plan: ForwardPlan) -> None:
        """Remove the adjusters of sequences the plan removes. Make adjusters for added sequences
        with `before` set."""
        for batch_index in plan.left:
            self._adjusters.pop(batch_index, None)
        for item in plan.joined:
            if item.before is not None:
                self._adjusters[item.batch_index] = logit_adjuster(
                    item.sampling, item.before, self._model, self._grammars
                )

    def sampled(self, batch_index: int, token: int) -> None:
        """Pass the sequence's next sampled token to its adjuster, if it has one."""
        adjuster = self._adjusters.get(batch_index)
        if adjuster is not None:
            adjuster.append(token)

    def adjuster(self, batch_index: int) -> LogitAdjuster:
        """Return the adjuster for the sequence at the batch index. REQUIRES: it has one."""
        return self._adjusters[batch_index]

    def scores(self, logits: Tensor, batch_indices: Sequence[int]) -> Tensor | None:
        """Return float32 logits [n, vocab], row i adjusted for the sequence at batch_indices[i].
        Return None if no sequence is adjusted."""
        rows = [
            row
            for row, batch_index in enumerate(batch_indices)
            if batch_index in self._adjusters and not self._adjusters[batch_index].is_idle
        ]
        if not rows:
            return None
        scores = logits.float().clone()
        some = AdjustedRows.of([self._adjusters[batch_indices[row]] for row in rows])
        scores[rows] = adjusted(logits[rows], some.to(logits.device))
        return scores


def kept_adjustments(together: SampledTogether | None) -> "type[RowAdjustments]":
    """Return the class of a rank's adjustments: with adjusters on the leading rank, without on
    others. together: the ranks sharing the model; None for one rank."""
    return RowAdjustments if together is None or together.leads else NoAdjustments


class NoAdjustments(RowAdjustments):
    """Adjustments of a rank without adjusters, because it copies the leading rank's tokens."""

    def apply(self, plan: ForwardPlan) -> None:
        return


def score_prompts(
    plan: ForwardPlan,
    rows: ResolvedRows,
    starts: Mapping[int, int],
    head: HeadOf,
    device: torch.device,
) -> dict[int, ScoredRows]:
    """Score the prompt tokens of a plan's rows, while their forward's last hidden states exist.

    Return scores by the plan's rows. Pure; the runner's thread. rows: the plan's rows. starts:
    index of each row's first token in the forward. head: computes logits of given tokens. Raises
    PlanError if a scored row has fewer tokens than its plan scores.
    """
    found = {}
    for item in plan.scored:
        at = int(rows.tokens_at[item.row])
        if rows.at_index[item.row] or not 0 < item.count <= rows.lengths[item.row]:
            raise PlanError(f"plan {plan.number} scores tokens that row {item.row} does not have")
        behind = plan.tokens[at + 1 : at + item.count]
        targets = torch.from_numpy(np.append(behind, item.following).astype(np.int64))
        first = starts[item.row]
        places = torch.arange(first, first + item.count, device=device)
        if device.type != "cpu":
            targets = targets.pin_memory().to(device, non_blocking=True)
        found[item.row] = score_rows(head, places, targets, item.top)
    return found
