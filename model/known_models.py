"""The published shapes of the family by name, for whatever needs a shape but no weights: replays,
memory plans, benchmarks."""

from pathlib import Path
from typing import Any

from .config import ModelConfig, ModelConfigError

_COMMON: dict[str, Any] = {
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "vocab_size": 248320,
    "rms_norm_eps": 1e-6,
    "full_attention_interval": 4,
    "partial_rotary_factor": 0.25,
    "rope_theta": 1e7,
    "max_position_embeddings": 262144,
    "eos_token_id": 0,
}
_DENSE = _COMMON | {"model_type": "qwen3_5_text"}
_SMALL = _DENSE | {"tie_word_embeddings": True}
_MOE = _COMMON | {"model_type": "qwen3_5_moe_text", "num_key_value_heads": 2}
PUBLISHED: dict[str, dict[str, Any]] = {
    "0.8b": _SMALL
    | {
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
        "intermediate_size": 3584,
    },
    "2b": _SMALL
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "linear_num_value_heads": 16,
        "intermediate_size": 6144,
    },
    "4b": _SMALL
    | {
        "hidden_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 32,
        "intermediate_size": 9216,
    },
    "9b": _DENSE
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 32,
        "intermediate_size": 12288,
    },
    "27b": _DENSE
    | {
        "hidden_size": 5120,
        "num_hidden_layers": 64,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "linear_num_value_heads": 48,
        "intermediate_size": 17408,
    },
    "35b-a3b": _MOE
    | {
        "hidden_size": 2048,
        "num_hidden_layers": 40,
        "num_attention_heads": 16,
        "linear_num_value_heads": 32,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 512,
        "shared_expert_intermediate_size": 512,
    },
    "122b-a10b": _MOE
    | {
        "hidden_size": 3072,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "linear_num_value_heads": 64,
        "num_experts": 256,
        "num_experts_per_tok": 8,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    },
    "397b-a17b": _MOE
    | {
        "hidden_size": 4096,
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "linear_num_value_heads": 64,
        "num_experts": 512,
        "num_experts_per_tok": 10,
        "moe_intermediate_size": 1024,
        "shared_expert_intermediate_size": 1024,
    },
}


def published_or_folder(name: str) -> ModelConfig:
    """A published shape by name, else a checkpoint folder's. Raises ModelConfigError."""
    if name in PUBLISHED:
        return ModelConfig.from_dict(dict(PUBLISHED[name]), source=name)
    if not Path(name).is_dir():
        known = ", ".join(PUBLISHED)
        raise ModelConfigError(f"model {name}: no such folder; name one, or one of {known}")
    return ModelConfig.load(name)
