"""A cost-free model: its shape, and the forwards outside a FreeRunner."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.model.drafts import NoDraftLayer
from tasuki.model.families.loading import random_weights
from tasuki.model.families.registry import published
from tasuki.model.forward import Batch, LayerHooks
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.ops.sampling.slice import Slice
from tasuki.model.protocol import Model
from tasuki.model.weights.layers import Weights
from tasuki.model.weights.matrix import Matrix
from tasuki.pycache.arena import Arena
from tasuki.utils.signatures import Notice

from .step_cost import StepCost
from .tokens import VOCABULARY, NextToken, next_token

_LOGIT = 16.0


def free_shape(layers: int) -> dict[str, Any]:
    """Return the content of a config.json with the layer kinds of a published model. Its layers are
    as narrow as possible, so KV and state cost nothing. layers: number of layers, a multiple of
    4."""
    return published("0.8b") | {
        "vocab_size": VOCABULARY,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": layers,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 8,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 8,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 4,
        "max_position_embeddings": 1 << 20,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": True,
        "eos_token_id": 0,
    }


class FreeModel:
    """The cost-free `Model` for early steps of a decode node; FreeRunner does all other
    forwards."""

    def __init__(
        self, config: ModelConfig, cost: StepCost, answers: NextToken = next_token
    ) -> None:
        """Set up the model. cost: duration of a forward. answers: function returning the next
        tokens, like in FreeRunner."""
        self.config = config
        self.weights: Weights = random_weights(config, 1, torch.float32)
        self.draft_ids: Tensor | None = None
        self.draft_rows: Matrix | None = None
        self.own_slice: Slice | None = None
        self._cost = cost
        self._answers = answers

    def beside(self) -> tuple[Model, Notice]:
        return self, lambda: None

    def whole(self, logits: Tensor) -> Tensor:
        return logits

    def fold(self, batch: Batch, inputs: Mapping[int, Tensor], arena: Arena) -> None:
        """Do nothing: a cost-free model has no state."""

    def carried(self, arena: Arena) -> Tensor:
        raise NoDraftLayer("a cost-free model has no draft layer: leave out --speculate mtp")

    def draft_logits(self, hidden: Tensor, batch: Batch, arena: Arena) -> tuple[Tensor, Tensor]:
        raise NoDraftLayer("a cost-free model has no draft layer: leave out --speculate mtp")

    def forward(
        self,
        batch: Batch,
        arena: Arena,
        hooks: LayerHooks,
        score: Callable[[HeadOf], None] | None = None,
    ) -> Tensor:
        """Wait for the forward's duration, then return logits [sequences, vocabulary] with the next
        token's highest. The arena is neither read nor written. REQUIRES: no tokens are scored."""
        nothing = torch.empty(0)
        for layer in range(self.config.layers):
            hooks.before_layer(layer)
            hooks.cache_written(layer)
            hooks.after_layer(layer, lambda: nothing)
        last = batch.cu_seqlens[1:] - 1
        position = batch.positions[last] + 1
        self._cost.wait(rows=len(last), prompt_tokens=0)
        tokens = self._answers(batch.token_ids[last], position, self.config.vocab)
        logits = torch.zeros(len(last), self.config.vocab)
        logits[torch.arange(len(last)), tokens] = _LOGIT
        return logits
