"""Tokens that the draft layer expects behind those drawn last: one, then each behind the one
before.

Pure but for the entries that it writes at the drafts' positions, which the forwards that compute
those tokens write over. A draft is drawn with the temperature and the noise of its position, as the
model will draw there: what is likely to be drawn is likely to be the draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import sample
from tasuki.pycache.arena import Arena

from .batch import Batch, SequenceSlice
from .qwen3_5 import Qwen35Model


@dataclass(frozen=True)
class DraftStart:
    """Of one sequence: the token drawn last, which is to stand at `position`, the model's final
    hidden state [hidden] of the one before, its pages, a slot of its own, and how many drafts are
    wanted. REQUIRES: its pages have room for them."""

    token: int
    position: int
    hidden: Tensor
    pages: Sequence[int]
    slot: int
    sampling: SamplingParams
    count: int


@torch.inference_mode()
def draft_tokens(
    model: Qwen35Model, arena: Arena, starts: Sequence[DraftStart]
) -> list[tuple[int, ...]]:
    """Of each its drafts, in order."""
    found: list[list[int]] = [[] for _ in starts]
    hidden = {place: start.hidden for place, start in enumerate(starts)}
    for step in range(max((start.count for start in starts), default=0)):
        going = [place for place, start in enumerate(starts) if start.count > step]
        slices = [
            SequenceSlice(
                found[place][-1:] or [starts[place].token],
                starts[place].position + step,
                starts[place].pages,
                starts[place].slot,
                None,
            )
            for place in going
        ]
        before = torch.stack([hidden[place] for place in going])
        logits, after = model.draft_logits(before, Batch.pack(slices), arena)
        drawn = sample(
            logits,
            [starts[place].sampling for place in going],
            [starts[place].position + step + 1 for place in going],
        )
        for row, place in enumerate(going):
            found[place].append(drawn[row].token)
            hidden[place] = after[row]
    return [tuple(drafts) for drafts in found]
