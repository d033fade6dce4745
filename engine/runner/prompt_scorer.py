"""Scores the prompts of a plan's rows, while their forward's last hidden states stand.

Pure; the runner's thread.
"""

from collections.abc import Mapping

import numpy as np
import torch

from tasuki.engine.forward_plan import ForwardPlan, PlanError
from tasuki.model.ops.sampling.prompt_scores import HeadOf, ScoredRows, score_rows

from .sequence_states import ResolvedRows


def score_prompts(
    plan: ForwardPlan,
    rows: ResolvedRows,
    starts: Mapping[int, int],
    head: HeadOf,
    device: torch.device,
) -> dict[int, ScoredRows]:
    """By the plan's rows. rows: the plan's. starts: where each row's tokens begin in the forward.
    Raises PlanError where a row that is scored has fewer tokens than its plan scores."""
    found = {}
    for item in plan.scored:
        at = int(rows.tokens_at[item.row])
        if rows.on_lane[item.row] or not 0 < item.count <= rows.lengths[item.row]:
            raise PlanError(f"plan {plan.number} scores tokens that row {item.row} does not have")
        behind = plan.tokens[at + 1 : at + item.count]
        targets = torch.from_numpy(np.append(behind, item.following).astype(np.int64))
        first = starts[item.row]
        places = torch.arange(first, first + item.count, device=device)
        if device.type != "cpu":
            targets = targets.pin_memory().to(device, non_blocking=True)
        found[item.row] = score_rows(head, places, targets, item.top)
    return found
