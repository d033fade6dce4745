"""A naive forward of Kimi Linear, token by token, from the published tensors and config fields.

It shares no code with the served model, keeps whole keys and values of every head, and computes
each formula as published. Everything is float32.
"""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

Tensors = dict[str, Tensor]


@dataclass
class NaiveLayer:
    """State of one layer: the last inputs of the three convolutions and the matrix of a KDA layer;
    all latent rows of an attention layer."""

    inputs: list[Tensor] = field(default_factory=list)
    matrix: Tensor | None = None
    latents: list[Tensor] = field(default_factory=list)
    shared: list[Tensor] = field(default_factory=list)


class NaiveKimi:
    """A model of published tensors by name (`model.layers...`) and a parsed config.json."""

    def __init__(self, config: dict[str, Any], tensors: Tensors) -> None:
        self.config = config
        self.tensors = {name: value.float() for name, value in tensors.items()}
        self.layers = [NaiveLayer() for _ in range(config["num_hidden_layers"])]

    @torch.inference_mode()
    def token(self, token: int) -> Tensor:
        """Run one more token of the sequence, and return its logits [vocab]."""
        x = self.tensors["model.embed_tokens.weight"][token]
        eps = self.config["rms_norm_eps"]
        for layer in range(len(self.layers)):
            prefix = f"model.layers.{layer}"
            h = self._norm(x, f"{prefix}.input_layernorm.weight", eps)
            kda = layer + 1 in self.config["linear_attn_config"]["kda_layers"]
            mixed = self._kda(layer, h) if kda else self._attention(layer, h)
            x = x + mixed
            h = self._norm(x, f"{prefix}.post_attention_layernorm.weight", eps)
            dense = layer < self.config["first_k_dense_replace"]
            x = x + (
                self._swiglu(h, f"{prefix}.mlp", ("gate_proj", "up_proj", "down_proj"))
                if dense
                else self._experts(h, f"{prefix}.block_sparse_moe")
            )
        return self._norm(x, "model.norm.weight", eps) @ self.tensors["lm_head.weight"].T

    def _norm(self, x: Tensor, name: str, eps: float) -> Tensor:
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * self.tensors[name]

    def _linear(self, x: Tensor, name: str) -> Tensor:
        return self.tensors[f"{name}.weight"] @ x

    def _swiglu(self, x: Tensor, prefix: str, names: tuple[str, str, str]) -> Tensor:
        gate, up, down = names
        inner = functional.silu(self._linear(x, f"{prefix}.{gate}"))
        return self._linear(inner * self._linear(x, f"{prefix}.{up}"), f"{prefix}.{down}")

    def _kda(self, layer: int, h: Tensor) -> Tensor:
        prefix, state = f"model.layers.{layer}.self_attn", self.layers[layer]
        linear = self.config["linear_attn_config"]
        heads, dim, taps = linear["num_heads"], linear["head_dim"], linear["short_conv_kernel_size"]
        inputs = torch.stack([self._linear(h, f"{prefix}.{name}_proj") for name in "qkv"])
        state.inputs = [*state.inputs, inputs][-taps:]
        mixed = []
        for part, name in enumerate("qkv"):
            kernel = self.tensors[f"{prefix}.{name}_conv1d.weight"][:, 0]
            total = torch.zeros(heads * dim)
            for back, before in enumerate(reversed(state.inputs)):
                total = total + kernel[:, taps - 1 - back] * before[part]
            mixed.append(functional.silu(total).view(heads, dim))
        q, k, v = mixed
        q, k = (x / (x.square().sum(-1, keepdim=True) + 1e-6).sqrt() for x in (q, k))
        step = self._linear(self._linear(h, f"{prefix}.f_a_proj"), f"{prefix}.f_b_proj")
        step = functional.softplus(step + self.tensors[f"{prefix}.dt_bias"]).view(heads, dim)
        decay = (-self.tensors[f"{prefix}.A_log"].view(heads, 1).exp() * step).exp()
        beta = self._linear(h, f"{prefix}.b_proj").sigmoid()
        gate = self._linear(self._linear(h, f"{prefix}.g_a_proj"), f"{prefix}.g_b_proj").sigmoid()
        # [heads, key dim, value dim].
        matrix = torch.zeros(heads, dim, dim) if state.matrix is None else state.matrix
        outputs = []
        for head in range(heads):
            own = torch.diag(decay[head]) @ matrix[head]
            own = own + beta[head] * torch.outer(k[head], v[head] - k[head] @ own)
            matrix = torch.cat([matrix[:head], own[None], matrix[head + 1 :]])
            outputs.append(q[head] @ own * dim**-0.5)
        state.matrix = matrix
        normed = self._norm(
            torch.stack(outputs), f"{prefix}.o_norm.weight", self.config["rms_norm_eps"]
        )
        return self._linear((normed * gate.view(heads, dim)).flatten(), f"{prefix}.o_proj")

    def _attention(self, layer: int, h: Tensor) -> Tensor:
        prefix, state, config = f"model.layers.{layer}.self_attn", self.layers[layer], self.config
        heads, own, common = (
            config["num_attention_heads"],
            config["qk_nope_head_dim"],
            config["qk_rope_head_dim"],
        )
        both = self._linear(h, f"{prefix}.kv_a_proj_with_mqa")
        latent, shared = both.split([config["kv_lora_rank"], common])
        state.latents.append(self._norm(latent, f"{prefix}.kv_a_layernorm.weight", 1e-6))
        state.shared.append(shared)
        q = self._linear(h, f"{prefix}.q_proj").view(heads, own + common)
        expanded = torch.stack([self._linear(x, f"{prefix}.kv_b_proj") for x in state.latents])
        expanded = expanded.view(len(state.latents), heads, own + config["v_head_dim"])
        outputs = []
        for head in range(heads):
            keys = torch.cat([expanded[:, head, :own], torch.stack(state.shared)], dim=-1)
            shares = (keys @ q[head] * (own + common) ** -0.5).softmax(0)
            outputs.append(shares @ expanded[:, head, own:])
        return self._linear(torch.cat(outputs), f"{prefix}.o_proj")

    def _experts(self, x: Tensor, prefix: str) -> Tensor:
        config = self.config
        scores = self._linear(x, f"{prefix}.gate").sigmoid()
        biased = scores + self.tensors[f"{prefix}.gate.e_score_correction_bias"]
        chosen = biased.argsort(descending=True)[: config["num_experts_per_token"]]
        total = torch.zeros_like(x)
        for expert in chosen.tolist():
            weight = scores[expert] / scores[chosen].sum() * config["routed_scaling_factor"]
            names = ("w1", "w3", "w2")
            total = total + weight * self._swiglu(x, f"{prefix}.experts.{expert}", names)
        names = ("gate_proj", "up_proj", "down_proj")
        return total + self._swiglu(x, f"{prefix}.shared_experts", names)
