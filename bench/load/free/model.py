"""A cost-free model: its shape, and the forwards outside a FreeRunner."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.model.forward import Batch, LayerHooks
from tasuki.model.ops.sampling.prompt_scores import HeadOf
from tasuki.model.qwen3_5 import Qwen35Model
from tasuki.model.weights.layers import random_weights
from tasuki.pycache.arena import Arena

from .step_cost import StepCost
from .tokens import VOCABULARY, NextToken, next_token

_LOGIT = 16.0


def free_shape(layers: int) -> dict[str, Any]:
    """Return the content of a config.json with the layer kinds of a published model. Its layers are
    as narrow as possible, so KV and state cost nothing. layers: number of layers, a multiple of
    4."""
    return {
        "model_type": "qwen3_5_text",
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


class FreeModel(Qwen35Model):
    """The cost-free model for early steps of a decode node; FreeRunner does all other forwards."""

    def __init__(
        self, config: ModelConfig, cost: StepCost, answers: NextToken = next_token
    ) -> None:
        """Set up the model. cost: duration of a forward. answers: function returning the next
        tokens, like in FreeRunner."""
        super().__init__(config, random_weights(config, 1, torch.float32))
        self._cost = cost
        self._answers = answers

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
            hooks.after_layer(layer, nothing, nothing)
        last = batch.cu_seqlens[1:] - 1
        position = batch.positions[last] + 1
        self._cost.wait(rows=len(last), prompt_tokens=0)
        tokens = self._answers(batch.token_ids[last], position, self.config.vocab)
        logits = torch.zeros(len(last), self.config.vocab)
        logits[torch.arange(len(last)), tokens] = _LOGIT
        return logits
