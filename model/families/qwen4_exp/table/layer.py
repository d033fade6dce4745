"""The n-gram table's layer in PyTorch: rows by hash, a gate for each stream, a dilated convolution.

A value from the table is gated by the agreement of each stream with a key from the table. The
convolution reads the normed values of the token and of tokens before it, `ngram` tokens apart. What
it reads of earlier forwards is a window in the slot.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.families.qwen4_exp.config import Qwen4ExpConfig, TableShape
from tasuki.model.families.qwen4_exp.states import WindowPlan
from tasuki.model.families.qwen4_exp.streams import each_stream, norm_each
from tasuki.model.families.qwen4_exp.table.rows import NgramTable, context_ids, row_ids


@dataclass(frozen=True)
class TableWeights:
    """Weights of an n-gram table and of what adds it to the streams.

    key [count * hidden, width], value [hidden, width]: products with a token's rows. key_norm,
    query_norm, conv_norm [count * hidden] fp32: 1 + w, of each stream alone. conv [count * hidden,
    taps]: the dilated convolution.
    """

    table: NgramTable
    key: Tensor
    value: Tensor
    key_norm: Tensor
    query_norm: Tensor
    conv_norm: Tensor
    conv: Tensor


@dataclass(frozen=True)
class TablePlan:
    """What one table does in a forward of T tokens. ids [T, heads] int64: rows of each token.
    window: the plan of the convolution's window."""

    ids: Tensor
    window: WindowPlan

    @staticmethod
    def of(
        shape: TableShape,
        config: Qwen4ExpConfig,
        tokens: Sequence[Tensor],
        before: Sequence[Sequence[int]],
        window: WindowPlan,
    ) -> "TablePlan":
        """Return the plan. tokens: ids of each sequence, int64. before: the ids before each
        sequence's first token, all of them or at least `ids_before`."""
        end = config.end_of_text
        assert end is not None, "a config with tables has an end of text"
        ids = [
            row_ids(own, context_ids(earlier, shape, end), end, shape)
            for own, earlier in zip(tokens, before, strict=True)
        ]
        return TablePlan(torch.cat(ids), window)


@dataclass(frozen=True)
class TableRows:
    """Values of a table for T tokens, before the convolution. values, normed: [T, count * hidden];
    `normed` is what the convolution and its window take."""

    values: Tensor
    normed: Tensor


def gated_rows(
    streams: Tensor, plan: TablePlan, weights: TableWeights, config: Qwen4ExpConfig
) -> TableRows:
    """Return the table's gated values for streams [T, count * hidden]."""
    count, eps = config.streams.count, config.norm_eps
    rows = weights.table.rows(plan.ids, streams.dtype)
    keys = norm_each(functional.linear(rows, weights.key), weights.key_norm, count, eps)
    queries = norm_each(streams, weights.query_norm, count, eps)
    agreement = each_stream(keys * queries, count).sum(-1, keepdim=True)
    agreement = agreement / math.sqrt(config.hidden)
    gate = (agreement.abs().clamp_min(1e-6).sqrt() * agreement.sign()).sigmoid()
    values = (gate * functional.linear(rows, weights.value)[:, None, :]).flatten(1)
    return TableRows(values, norm_each(values, weights.conv_norm, count, eps))


def convolved(extended: Tensor, plan: WindowPlan, conv: Tensor, dilation: int) -> Tensor:
    """Return silu(convolution) [T, channels] of extended rows, see WindowPlan.extend(). conv
    [channels, taps]; dilation: tokens between taps."""
    taps = conv.t()
    total = extended[plan.rows.outputs] * taps[0]
    for tap in range(1, len(taps)):
        total = total + extended[plan.rows.outputs + tap * dilation] * taps[tap]
    return functional.silu(total)


def add_table(
    streams: Tensor,
    rows: TableRows,
    plan: TablePlan,
    weights: TableWeights,
    window: Tensor,
) -> Tensor:
    """Return the streams with the table's rows added, and store the planned windows. window:
    [slots, count * hidden, (taps - 1) * ngram]."""
    extended = plan.window.extend(rows.normed, window)
    behind = convolved(extended, plan.window, weights.conv, weights.table.shape.ngram)
    return streams + rows.values + behind
