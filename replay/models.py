"""The published shapes a trace can be replayed for, by name."""

from pathlib import Path
from typing import Any

from ..model.config import ModelConfig
from .errors import ReplayError

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
_MOE = _COMMON | {"model_type": "qwen3_5_moe_text", "num_key_value_heads": 2}
PUBLISHED: dict[str, dict[str, Any]] = {
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


def load_model(name: str) -> ModelConfig:
    """A published shape by name, else a checkpoint folder's. Raises ReplayError."""
    if name in PUBLISHED:
        return ModelConfig.from_dict(dict(PUBLISHED[name]), source=name)
    if not Path(name).is_dir():
        known = ", ".join(PUBLISHED)
        raise ReplayError(f"model {name}: no such folder; name one, or one of {known}")
    return ModelConfig.load(name)
