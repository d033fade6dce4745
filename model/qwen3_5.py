"""Qwen3.5 text models, dense and MoE: the layer stack.

Owns the weights; knows pages and slots only as ids in a `Batch` and memory only as views of the
arena it is given. A forward is a function of (batch, arena), so one model serves several arenas;
calls on one arena come from one thread.
"""

import torch
from torch import Tensor
from torch.nn import functional

from ..pycache.arena import Arena
from .batch import Batch
from .config import ModelConfig
from .hooks import LayerHooks
from .layers import attention_mixer, feed_forward, gdn_mixer
from .ops.norm import rms_norm
from .plan import ForwardPlan
from .weights import GdnWeights, LayerWeights, ModelWeights


class Qwen35Model:
    """REQUIRES: the arena's layout is config.cache_layout(...); ids of a batch are inside it."""

    def __init__(self, config: ModelConfig, weights: ModelWeights) -> None:
        self.config = config
        self.weights = weights

    @torch.inference_mode()
    def forward(self, batch: Batch, arena: Arena, hooks: LayerHooks) -> Tensor:
        """Logits [B, vocab] float32 of each sequence's last token; pages and slots are written."""
        return self.logits(self.hidden(batch, arena, hooks)[batch.cu_seqlens[1:] - 1])

    @torch.inference_mode()
    def hidden(self, batch: Batch, arena: Arena, hooks: LayerHooks) -> Tensor:
        """The residual stream after the final norm, [T, hidden], of every token."""
        config = self.config
        plan = ForwardPlan.of(batch, config)
        x = functional.embedding(batch.token_ids, self.weights.embedding)
        for layer, weights in enumerate(self.weights.layers):
            hooks.before_layer(layer)
            x = x + self._mixer(
                layer, weights, rms_norm(x, weights.mixer_norm, config.norm_eps), arena, plan
            )
            x = x + feed_forward(
                rms_norm(x, weights.mlp_norm, config.norm_eps), weights.mlp, config
            )
            hooks.after_layer(layer, x)
        return rms_norm(x, self.weights.norm, config.norm_eps)

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """[n, vocab] float32 of final-normed hidden states [n, hidden]."""
        return functional.linear(hidden, self.weights.head).float()

    def _mixer(
        self, layer: int, weights: LayerWeights, x: Tensor, arena: Arena, plan: ForwardPlan
    ) -> Tensor:
        index = arena.layout.kind_index(layer)
        mixer = weights.mixer
        if isinstance(mixer, GdnWeights):
            return gdn_mixer(x, mixer, self.config, arena.conv[index], arena.ssm[index], plan)
        return attention_mixer(x, mixer, self.config, arena.kv[index], plan)
