"""What a model answers whose logits are all equal: the tokens that the noise alone draws.

So every token of an answer is known before it is drawn, whatever computes it, and all of them
differ. Pure.
"""

import numpy as np
import torch
from torch import Tensor

from tasuki.engine.forward_plan import Ints
from tasuki.model.ops.sampling.gumbel import noise_key
from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.reference import sample

_AT_ONCE = 1024
"""Tokens; each has a row of its own on the device for what its runs of the vocabulary leave."""


def known_answer(
    sampling: SamplingParams, first: int, vocab: int, dtype: torch.dtype, device: torch.device
) -> Ints:
    """All its tokens, of which the first one stands at position `first`. dtype: of logits.
    REQUIRES: the temperature is 1, and nothing is cut or adjusted."""
    positions: Ints = np.arange(first, first + sampling.max_new_tokens, dtype=np.int32)
    logits = torch.zeros(1, vocab, dtype=dtype, device=device)
    drawn = [
        _on_gpu(logits, sampling, some)
        if device.type == "cuda"
        else _on_cpu(logits, sampling, some)
        for some in np.array_split(positions, -(-len(positions) // _AT_ONCE))
    ]
    return np.concatenate(drawn)


def _on_cpu(logits: Tensor, sampling: SamplingParams, positions: Ints) -> Ints:
    rows = logits.float().expand(len(positions), -1)
    drawn = sample(rows, [sampling] * len(positions), positions.tolist())
    return np.array([one.token for one in drawn], dtype=np.int32)


def _on_gpu(logits: Tensor, sampling: SamplingParams, positions: Ints) -> Ints:
    from tasuki.model.ops.sampling.sample import Draws
    from tasuki.model.ops.sampling.sample import sample as sample_on_gpu

    count, device = len(positions), logits.device
    draws = Draws.empty(count, device)
    draws.temperature.fill_(sampling.temperature)
    draws.keys.copy_(torch.tensor(noise_key(sampling.seed), dtype=torch.int32))
    draws.positions.copy_(torch.from_numpy(positions))
    rows = torch.tensor([count], dtype=torch.int32, device=device)
    sample_on_gpu(logits.expand(count, -1), draws, rows)
    found: Ints = draws.token.cpu().numpy()
    return found
