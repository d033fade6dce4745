"""The naive twin of model/ops/sampling/logit_adjustments.py: a row, a token at a time, by the
definitions."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.model.ops.sampling.params import SamplingParams
from tests.harness.engines import LETTERS
from tests.model.grammar_twin import naive_tokens

Row = NDArray[np.float32]
_OUT = np.float32(-math.inf)


def naive_adjusted(
    logits: Row,
    params: SamplingParams,
    ends: frozenset[int],
    prompt: Sequence[int],
    output: Sequence[int],
) -> Row:
    """ends: tokens that would end the answer. The whole prompt and output, in order. A grammar's
    tokens are LETTERS."""
    row = logits.copy()
    for token in range(len(row)):
        if params.allowed_token_ids and token not in params.allowed_token_ids:
            row[token] = _OUT
    if params.grammar is not None:
        followed = naive_tokens(params.grammar, LETTERS, output)
        kept = [token for token in followed if np.isfinite(row[token])]
        row = np.where([token in (kept or followed) for token in range(len(row))], logits, _OUT)
    without = row.copy()
    for word in params.bad_words:
        before = list(word[:-1])
        if list(output[len(output) - len(before) :]) == before:
            without[word[-1]] = _OUT
    if len(output) < params.min_tokens:
        for token in ends:
            without[token] = _OUT
    if np.isfinite(without).any():
        row = without
    for token, bias in params.logit_bias:
        row[token] = row[token] + np.float32(bias)
    repetition = np.float32(params.repetition_penalty)
    frequency, presence = np.float32(params.frequency_penalty), np.float32(params.presence_penalty)
    for token in range(len(row)):
        count = list(output).count(token)
        if token in prompt or count:
            row[token] = row[token] / repetition if row[token] > 0 else row[token] * repetition
        if count:
            row[token] = row[token] - frequency * np.float32(count)
            row[token] = row[token] - presence
    if params.min_p and params.temperature:
        heated = row.astype(np.float64) / params.temperature
        masses = np.exp(heated - heated.max())
        likely = masses / masses.sum()
        row[likely < params.min_p * likely.max()] = _OUT
    return row
