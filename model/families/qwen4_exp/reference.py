"""Qwen4-Exp computed naively: a whole sequence at once, without pages, slots or chunks.

It is the reference of the stack, written from the model's definition in float32. Recurrences go
token by token, choices query by query. Only tests use it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from tasuki.model.config import MoeShape
from tasuki.model.families.qwen4_exp.config import OutputGate, Qwen4ExpConfig, TableShape
from tasuki.model.families.qwen4_exp.streams import ConnectionWeights, MixerWeights, each_stream
from tasuki.model.families.qwen4_exp.table.layer import TableWeights
from tasuki.model.families.qwen4_exp.weights import LayerWeights, ModelWeights, SparseWeights
from tasuki.model.ops.attention.rope import RotaryAngles
from tasuki.model.weights.layers import GdnWeights, MoeWeights


@dataclass(frozen=True)
class NaiveForward:
    """Results for T tokens. streams: of each layer, [T, count * hidden]. logits [T, vocab]. chosen:
    of each sparse layer, the positions seen by each query."""

    streams: tuple[Tensor, ...]
    logits: Tensor
    chosen: tuple[tuple[tuple[int, ...], ...], ...]


class Naive:
    """The model over one sequence. REQUIRES: weights in float32, of one rank."""

    def __init__(self, config: Qwen4ExpConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights
        self._angles = RotaryAngles.of(config)
        self._chosen: list[tuple[tuple[int, ...], ...]] = []

    @torch.inference_mode()
    def forward(self, tokens: Sequence[int]) -> NaiveForward:
        """Return the results for the tokens of a sequence."""
        self._chosen = []
        streams = self.weights.embedding[list(tokens)].repeat(1, self.config.streams.count)
        found = []
        for weights in self.weights.layers:
            if weights.table is not None:
                streams = streams + self._table(streams, tokens, weights.table)
            streams = self._layer(streams, weights)
            found.append(streams)
        logits = self._head(streams, self.weights.final)
        return NaiveForward(tuple(found), logits, tuple(self._chosen))

    @torch.inference_mode()
    def draft_logits(self, tokens: Sequence[int], following: int) -> Tensor:
        """Return the draft layer's logits [vocab] after the tokens and the one following them."""
        draft, count = self.weights.draft, self.config.streams.count
        assert draft is not None
        streams = self.forward(tokens).streams[-1]
        embedded = self.weights.embedding[[*tokens[1:], following]]
        hidden = each_stream(self._norm(streams, draft.hidden_norm), count)
        embedded = self._norm(embedded, draft.embedding_norm) @ draft.fc_embedding.T
        # Entry j is made from token j and the streams before it, and the first entry is 1.
        joined = (hidden @ draft.fc_hidden.T + embedded[:, None]).flatten(1)
        return self._head(self._layer(joined, draft.layer), draft.final)[-1]

    def _layer(self, streams: Tensor, weights: LayerWeights) -> Tensor:
        x, factors = self._read(streams, weights.mixer_connection)
        mixer = weights.mixer
        mixed = self._gdn(x, mixer) if isinstance(mixer, GdnWeights) else self._sparse(x, mixer)
        streams = streams + (factors[..., None] * mixed[:, None]).flatten(1)
        x, factors = self._read(streams, weights.experts_connection)
        return streams + (factors[..., None] * self._experts(x, weights.experts)[:, None]).flatten(
            1
        )

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return x / (x.square().mean(-1, keepdim=True) + self.config.norm_eps).sqrt() * weight

    def _norm_each(self, x: Tensor, weight: Tensor) -> Tensor:
        count = self.config.streams.count
        split = each_stream(x, count)
        return self._norm(split, weight.view(count, -1)).flatten(-2)

    def _contract(self, normed: Tensor, weights: MixerWeights) -> Tensor:
        count = self.config.streams.count
        inner = functional.silu(normed @ weights.down.T / count)
        mixed = (inner @ weights.up.T).sigmoid() * normed
        return sum(mixed.chunk(count, dim=-1), torch.zeros(())) / count

    def _read(self, streams: Tensor, weights: ConnectionWeights) -> tuple[Tensor, Tensor]:
        normed = self._norm_each(streams, weights.mixer.norm)
        factors = 2 * (normed @ weights.inject.T / self.config.streams.count).sigmoid()
        return self._contract(normed, weights.mixer), factors

    def _head(self, streams: Tensor, weights: MixerWeights) -> Tensor:
        x = self._contract(self._norm_each(streams, weights.norm), weights)
        return x @ self.weights.head.dequantised(torch.float32).T

    def _experts(self, x: Tensor, weights: MoeWeights) -> Tensor:
        shape = self.config.feed_forward
        assert isinstance(shape, MoeShape)
        every = [weights.gate_up[number].dequantised(torch.float32) for number in shape.own]
        downs = [weights.down[number].dequantised(torch.float32) for number in shape.own]
        shared_up = weights.shared.gate_up.dequantised(torch.float32)
        shared_down = weights.shared.down.dequantised(torch.float32)
        rows = []
        for row in x:
            shares = (weights.router @ row).softmax(-1)
            best = shares.topk(shape.chosen).indices.tolist()
            total = sum(float(shares[expert]) for expert in best)
            output = (weights.shared_gate @ row).sigmoid() * _swiglu(row, shared_up, shared_down)
            for expert in best:
                share = float(shares[expert]) / total
                output = output + share * _swiglu(row, every[expert], downs[expert])
            rows.append(output)
        return torch.stack(rows)

    def _gdn(self, x: Tensor, weights: GdnWeights) -> Tensor:
        config = self.config
        keys, values = config.key_heads * config.key_dim, config.value_heads * config.value_dim
        projected = x @ weights.in_proj.dequantised(torch.float32).T
        mixed, z, b, a = projected.split_with_sizes(
            [2 * keys + values, values, config.value_heads, config.value_heads], dim=-1
        )
        mixed = functional.silu(_convolve(mixed, weights.conv, 1))
        state = torch.zeros(config.value_heads, config.value_dim, config.key_dim)
        rows = []
        for token, gate in enumerate(each_stream(z, config.value_heads)):
            q, k, v = mixed[token].split_with_sizes([keys, keys, values])
            outputs = []
            for head in range(config.value_heads):
                key_head = head * config.key_heads // config.value_heads
                query, key = (_unit(part.view(config.key_heads, -1)[key_head]) for part in (q, k))
                decay = weights.decay_rate[head] * functional.softplus(
                    a[token, head] + weights.dt_bias[head]
                )
                held = state[head] * decay.exp()
                value = v.view(config.value_heads, -1)[head]
                delta = b[token, head].sigmoid() * (value - held @ key)
                state[head] = held + torch.outer(delta, key)
                outputs.append(self._norm(state[head] @ query * config.key_dim**-0.5, weights.norm))
            opened = functional.silu(gate)
            if config.output_gate is OutputGate.SIGMOID:
                opened = gate.sigmoid()
            rows.append((torch.stack(outputs) * opened).flatten())
        return torch.stack(rows) @ weights.out_proj.dequantised(torch.float32).T

    def _sparse(self, x: Tensor, weights: SparseWeights) -> Tensor:
        config, attention = self.config, weights.attention
        heads, kv_heads, dim = config.query_heads, config.kv_heads, config.head_dim
        projected = x @ attention.in_proj.dequantised(torch.float32).T
        gated, k, v = projected.split_with_sizes(
            [2 * heads * dim, kv_heads * dim, kv_heads * dim], dim=-1
        )
        q, gate = each_stream(gated, heads).chunk(2, dim=-1)
        q = self._turned(self._norm(q, attention.q_norm))
        k = self._turned(self._norm(each_stream(k, kv_heads), attention.k_norm))
        v = each_stream(v, kv_heads)
        chosen = self._seen(x, weights)
        self._chosen.append(chosen)
        rows = []
        for token, seen in enumerate(chosen):
            outputs = []
            for head in range(heads):
                own = head * kv_heads // heads
                scores = k[list(seen), own] @ q[token, head] * dim**-0.5
                outputs.append(scores.softmax(-1) @ v[list(seen), own])
            rows.append((torch.stack(outputs) * gate[token].sigmoid()).flatten())
        return torch.stack(rows) @ attention.out_proj.dequantised(torch.float32).T

    def _seen(self, x: Tensor, weights: SparseWeights) -> tuple[tuple[int, ...], ...]:
        """Return the positions that each query attends to, ascending."""
        shape, index = self.config.index, weights.index
        queries, keys = (x @ index.query_key.T).split_with_sizes(
            [shape.heads * shape.dim, shape.dim], dim=-1
        )
        queries = self._norm(each_stream(queries, shape.heads), index.q_norm)
        queries = self._turned(queries)
        ratio, found = shape.ratio, []
        for position, query in enumerate(queries):
            whole = (position + 1) // ratio
            ranked = []
            for block in range(whole):
                pooled = keys[ratio * block : ratio * (block + 1)].mean(0)
                key = self._turned(self._norm(pooled, index.k_norm)[None, None], ratio * block)
                score = (query @ key[0, 0]).clamp_min(0).sum() / math.sqrt(shape.dim)
                ranked.append((-float(score), block))
            best = sorted(block for _, block in sorted(ranked)[: shape.chosen])
            seen = [ratio * block + place for block in best for place in range(ratio)]
            found.append((*seen, *range(ratio * whole, position + 1)))
        return tuple(found)

    def _turned(self, x: Tensor, first: int = 0) -> Tensor:
        """Return x [T, heads, dim] rotated at the positions from `first` on."""
        cos, sin = self._angles.table(torch.arange(first, first + len(x)))
        half = cos.shape[-1]
        low, high, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        return torch.cat([low * cos - high * sin, high * cos + low * sin, rest], dim=-1)

    def _table(self, streams: Tensor, tokens: Sequence[int], weights: TableWeights) -> Tensor:
        config, shape = self.config, weights.table.shape
        ids = torch.tensor([self._row_ids(tokens[: at + 1], shape) for at in range(len(tokens))])
        rows = weights.table.rows(ids, torch.float32)
        keys = self._norm_each(rows @ weights.key.T, weights.key_norm)
        queries = self._norm_each(streams, weights.query_norm)
        agreement = each_stream(keys * queries, config.streams.count).sum(-1)
        agreement = agreement / math.sqrt(config.hidden)
        gate = (agreement.abs().clamp_min(1e-6).sqrt() * agreement.sign()).sigmoid()
        values = (gate[..., None] * (rows @ weights.value.T)[:, None]).flatten(1)
        normed = self._norm_each(values, weights.conv_norm)
        behind = functional.silu(_convolve(normed, weights.conv, shape.ngram))
        return torch.add(values, behind)

    def _row_ids(self, tokens: Sequence[int], shape: TableShape) -> list[int]:
        """Return the table rows of the last of the tokens."""
        end = self.config.end_of_text
        assert end is not None
        recent, ended = [tokens[-1]], False
        for back in range(1, shape.ngram):
            before = tokens[-1 - back] if back < len(tokens) else end
            ended = ended or before == end
            recent.append(end if ended else before)
        ids: list[int] = []
        for order in range(2, shape.ngram + 1):
            mixed = 0
            for token, factor in zip(recent[:order], shape.multipliers, strict=False):
                mixed ^= token * factor
            first = (order - 2) * shape.heads_per_ngram
            for head in range(first, first + shape.heads_per_ngram):
                ids.append(mixed % shape.sizes[head] + shape.offsets[head])
        return ids


def _convolve(x: Tensor, weight: Tensor, dilation: int) -> Tensor:
    """Return the causal depthwise convolution of x [T, channels]. weight [channels, taps]."""
    rows = []
    for token in range(len(x)):
        total = torch.zeros(x.shape[1])
        for back, tap in enumerate(reversed(weight.unbind(1))):
            if token >= back * dilation:
                total = total + x[token - back * dilation] * tap
        rows.append(total)
    return torch.stack(rows)


def _unit(x: Tensor) -> Tensor:
    return x / (x.square().sum() + 1e-6).sqrt()


def _swiglu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = (gate_up @ x).chunk(2)
    return down @ (functional.silu(gate) * up)
