"""Cases of the sampler in a decode graph. Its least traffic is one read of the logits."""

from collections.abc import Iterator
from functools import partial

import torch

from tasuki.model.ops.sampling.sample import Draws, sample

from .case import Case, Stage, turns_to_overflow


def cases(stage: Stage) -> Iterator[Case]:
    for batch in (1, 16, 64):
        size = 4 * batch * stage.model.vocab
        logits = torch.randn(turns_to_overflow(size), batch, stage.model.vocab, device=stage.device)
        draws = Draws.empty(batch, stage.device)
        draws.temperature.fill_(1)
        rows = stage.rows(batch)
        yield Case(
            f"sample, batch {batch}",
            [partial(sample, item, draws, rows) for item in logits],
            bytes=size,
        )
