"""Published shapes of the Qwen3-Next models by name, for uses without weights."""

from typing import Any

_80B: dict[str, Any] = {
    "model_type": "qwen3_next",
    "vocab_size": 151936,
    "hidden_size": 2048,
    "num_hidden_layers": 48,
    "full_attention_interval": 4,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_experts": 512,
    "num_experts_per_tok": 10,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e7,
    "partial_rotary_factor": 0.25,
    "max_position_embeddings": 262144,
    "eos_token_id": 151645,
}

PUBLISHED: dict[str, dict[str, Any]] = {"qwen3-next-80b-a3b": _80B, "qwen3-coder-next": _80B}

_VARIANTS = ("-fp8", "-instruct", "-thinking", "-base")


def short_name(name: str) -> str:
    """Return the short name of a model, given that name or the huggingface.co one."""
    found = name.lower().removeprefix("qwen/")
    for variant in _VARIANTS:
        found = found.removesuffix(variant)
    return found
