"""The draft layer of a dense model as a trainable module. Names, shapes and arithmetic are the same
as those loaded and computed by the product (model/backends/torch_backend.py).

Computes whole sequences at once. A chain is the layer's drafts from one token on. The chain's first
step is the layer applied to a prompt. Each later step starts from the result of the previous one.
It sees the first step's keys up to its chain's beginning, and its own chain's key of every step
since then. The token before is always the text's, because a chain continues only after a correct
draft.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from tasuki.model.config import DeltaNetConfig, DenseShape
from tasuki.model.ops.attention.rope import RotaryAngles, apply_rotary

_UNSEEN = torch.finfo(torch.float32).min
_SPREAD = 0.02


class Keys(NamedTuple):
    """The attention keys and values of one step of the chains, [B, kv_heads, T, head_dim] each."""

    keys: Tensor
    values: Tensor


class DraftHead(nn.Module):
    """The draft layer of a model. state_dict() with `mtp.` before each name gives a checkpoint's
    tensors."""

    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__()
        hidden, eps = config.hidden, config.norm_eps
        self.fc = nn.Linear(2 * hidden, hidden, bias=False)
        self.pre_fc_norm_embedding = Norm(hidden, eps)
        self.pre_fc_norm_hidden = Norm(hidden, eps)
        self.layers = nn.ModuleList([_Layer(config)])
        self.norm = Norm(hidden, eps)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=_SPREAD)

    def forward(self, embedded: Tensor, hidden: Tensor, steps: int) -> list[Tensor]:
        """Return the output of each step of the chains, [B, T, hidden]; the model's head turns it
        into logits. At token i it predicts a later token. embedded [B, T, hidden]: embeddings of
        the tokens. hidden [B, T, hidden]: the model's states after its final norm. steps: number of
        drafts of a chain. The output of step s (from 0) has no meaning at tokens 0 to s."""
        before, earlier, found = hidden, list[Keys](), list[Tensor]()
        embedding = self.pre_fc_norm_embedding(embedded)
        for _ in range(steps):
            joined = (embedding, self.pre_fc_norm_hidden(_behind(before, 1)))
            after, kept = self.layers[0](self.fc(torch.cat(joined, -1)), earlier)
            earlier.append(kept)
            before = self.norm(after)
            found.append(before)
        return found


class Norm(nn.Module):
    """An RMS norm with zero-centred weights, like published ones."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self._eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x.float(), self.weight.shape, 1 + self.weight, self._eps)


class _Layer(nn.Module):
    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__()
        if not isinstance(config.feed_forward, DenseShape):
            raise ValueError("the draft layer of a model with experts is not trained here")
        self.input_layernorm = Norm(config.hidden, config.norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = Norm(config.hidden, config.norm_eps)
        self.mlp = _Mlp(config.hidden, config.feed_forward.intermediate)

    def forward(self, x: Tensor, earlier: Sequence[Keys]) -> tuple[Tensor, Keys]:
        mixed, kept = self.self_attn(self.input_layernorm(x), earlier)
        x = x + mixed
        return x + self.mlp(self.post_attention_layernorm(x)), kept


class _Mlp(nn.Module):
    def __init__(self, hidden: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(hidden, inner, bias=False)
        self.up_proj = nn.Linear(hidden, inner, bias=False)
        self.down_proj = nn.Linear(inner, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        down: Tensor = self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))
        return down


class _Attention(nn.Module):
    def __init__(self, config: DeltaNetConfig) -> None:
        super().__init__()
        self._heads, self._kv_heads, self._dim = (
            config.query_heads,
            config.kv_heads,
            config.head_dim,
        )
        self._angles = RotaryAngles.of(config)
        query, kv = self._heads * self._dim, self._kv_heads * self._dim
        self.q_proj = nn.Linear(config.hidden, 2 * query, bias=False)
        self.k_proj = nn.Linear(config.hidden, kv, bias=False)
        self.v_proj = nn.Linear(config.hidden, kv, bias=False)
        self.o_proj = nn.Linear(query, config.hidden, bias=False)
        self.q_norm = Norm(self._dim, config.norm_eps)
        self.k_norm = Norm(self._dim, config.norm_eps)

    def forward(self, x: Tensor, earlier: Sequence[Keys]) -> tuple[Tensor, Keys]:
        """Apply gated attention to x [B, T, hidden]. earlier: keys of the chains' previous steps.
        Returns the output and this step's keys."""
        tokens, dim = x.shape[1], self._dim
        gated = self.q_proj(x).unflatten(-1, (self._heads, 2 * dim))
        q, gate = gated.float().chunk(2, -1)
        cos, sin = self._angles.table(torch.arange(tokens, device=x.device))
        q = apply_rotary(self.q_norm(q), cos, sin).transpose(1, 2) * dim**-0.5
        k = self.k_norm(self.k_proj(x).unflatten(-1, (self._kv_heads, dim)))
        k = apply_rotary(k, cos, sin).transpose(1, 2)
        v = self.v_proj(x).float().unflatten(-1, (self._kv_heads, dim)).transpose(1, 2)
        kept = Keys(k, v)
        output = self._attend(q, [*earlier, kept])
        output = output.transpose(1, 2) * gate.sigmoid()
        return self.o_proj(output.flatten(2)), kept

    def _attend(self, q: Tensor, steps: Sequence[Keys]) -> Tensor:
        """Attend over the keys of all steps. q [B, heads, T, dim]: queries of the last step."""
        ratio = self._heads // self._kv_heads
        own = [Keys(*(part.repeat_interleave(ratio, 1) for part in step)) for step in steps]
        tokens, last = q.shape[2], len(own) - 1
        seen = torch.ones(tokens, tokens, dtype=torch.bool, device=q.device).tril(-last)
        # Entry 0 has no hidden state; in the product no query sees it either.
        seen[:, 0] = False
        scores = [(q @ own[0].keys.mT).float().masked_fill(~seen, _UNSEEN)]
        chain = [
            Keys(_behind(step.keys, last - number, -2), _behind(step.values, last - number, -2))
            for number, step in enumerate(own)
            if number
        ]
        scores += [(q * step.keys).sum(-1, keepdim=True) for step in chain]
        shares = torch.cat(scores, -1).softmax(-1)
        output = shares[..., :tokens] @ own[0].values
        for number, step in enumerate(chain):
            output = output + shares[..., tokens + number, None] * step.values
        return output


def _behind(x: Tensor, by: int, dim: int = 1) -> Tensor:
    """Return x shifted by `by` tokens, with zeros first."""
    if not by:
        return x
    rest = x.narrow(dim, 0, x.shape[dim] - by)
    return torch.cat([torch.zeros_like(x.narrow(dim, 0, by)), rest], dim)


STEP_WEIGHTS = (0.51, 0.31, 0.18)
"""Weights of a chain's steps in the loss, after FastMTP (arXiv 2509.18362)."""


@dataclass(frozen=True)
class Batch:
    """A training batch. tokens: token ids, [B, T]. embedded [B, T, hidden]: embeddings of the
    tokens. hidden [B, T, hidden]: the model's states after its final norm. head [vocab, hidden]:
    the model's output head."""

    tokens: Tensor
    embedded: Tensor
    hidden: Tensor
    head: Tensor


@dataclass(frozen=True)
class StepScores:
    """Scores of one step of the chains, means over tokens, on the device. divergence: distance of
    the model's distribution from the draft layer's, nats. cross_entropy: cross entropy against the
    text's tokens, nats. agreed: share of equal greedy tokens. overlap: common part of the two
    distributions, the upper bound of accepted sampled drafts."""

    divergence: Tensor
    cross_entropy: Tensor
    agreed: Tensor
    overlap: Tensor


def scores(head: DraftHead, batch: Batch) -> list[StepScores]:
    """Return the scores of every step with a weight in STEP_WEIGHTS."""
    with torch.no_grad():
        trunk = functional.linear(batch.hidden, batch.head).float().log_softmax(-1)
    chain = head(batch.embedded, batch.hidden, len(STEP_WEIGHTS))
    return [
        _step(step, functional.linear(found, batch.head), trunk, batch.tokens)
        for step, found in enumerate(chain)
    ]


def loss(found: list[StepScores], cross_entropy: float) -> Tensor:
    """Return the training loss of the scores. cross_entropy: weight of the cross entropy relative
    to the divergence's."""
    parts = [
        weight * (step.divergence + cross_entropy * step.cross_entropy)
        for weight, step in zip(STEP_WEIGHTS, found, strict=True)
    ]
    return torch.stack(parts).sum()


def _step(step: int, logits: Tensor, trunk: Tensor, tokens: Tensor) -> StepScores:
    """Return the scores of the chains' step `step`. trunk: the model's log probabilities [B, T,
    vocab]."""
    # There is no draft after the first tokens, and no text after the last.
    rows = slice(step + 1, -1)
    ours, theirs = logits[:, rows].float().log_softmax(-1), trunk[:, rows]
    divergence = functional.kl_div(ours, theirs, log_target=True, reduction="none").sum(-1)
    entropy = functional.nll_loss(ours.flatten(0, 1), tokens[:, step + 2 :].flatten())
    with torch.no_grad():
        agreed = (ours.argmax(-1) == theirs.argmax(-1)).float().mean()
        overlap = torch.minimum(ours.exp(), theirs.exp()).sum(-1).mean()
    return StepScores(divergence.mean(), entropy, agreed, overlap)
