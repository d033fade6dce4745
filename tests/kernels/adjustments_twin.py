"""The naive reference of model/ops/sampling/logit_adjustments.py: a row, a token at a time, by the
definitions."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from tasuki.model.ops.sampling.params import SamplingParams
from tasuki.model.ops.sampling.thinking_budget import ThinkingBudget
from tests.harness.engines import LETTERS
from tests.model.grammar_twin import naive_tokens

Row = NDArray[np.float32]
_OUT = np.float32(-math.inf)
NO_TOKENS: Mapping[int, int] = {}


def naive_adjusted(
    logits: Row,
    params: SamplingParams,
    ends: frozenset[int],
    prompt: Sequence[int],
    output: Sequence[int],
    lacking: Mapping[int, int] = NO_TOKENS,
) -> Row:
    """Return the adjusted logits of a row. ends: tokens that end the answer. prompt, output: all
    tokens, in order. A grammar's tokens are LETTERS. lacking: bytes that the last character of a
    token still needs, for tokens that end inside one."""
    row = logits.copy()
    left = None if params.thinking is None else naive_left(params.thinking, output)
    forced = None
    if params.thinking is not None and left is not None and left <= 0:
        forced = params.thinking.closing[-left]
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
    for token, lacks in lacking.items():
        if left is not None and lacks >= left:
            without[token] = _OUT
    if np.isfinite(without).any():
        row = without
    if forced is not None:
        row = np.where([token == forced for token in range(len(row))], logits, _OUT)
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


def naive_left(budget: ThinkingBudget, output: Sequence[int]) -> int | None:
    """Return the number of tokens that the thought may still have. From 0 on it counts down by the
    closing tokens already written. None if the answer does not think."""
    thought = list(output)
    if budget.opening is not None:
        if not thought or thought[0] != budget.opening:
            return None
        thought = thought[1:]
    if budget.tag in thought[: budget.most]:
        return None
    left = budget.most - len(thought)
    return left if left > -len(budget.closing) else None
