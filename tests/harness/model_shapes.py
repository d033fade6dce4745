"""Small model shapes for tests without goldens. All sizes differ, so a test shows swapped ones."""

from typing import Any

import torch

from tasuki.model.config import DeltaNetConfig
from tasuki.model.families.qwen3_5.stack import Qwen35Model
from tasuki.model.families.qwen3_5.weights import random_weights
from tests.harness.qwen35 import config_of


def dense_raw() -> dict[str, Any]:
    """Return the content of a flat config.json of a dense model."""
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": 160,
        "hidden_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 4,
        "full_attention_interval": 2,
        "intermediate_size": 80,
        "tie_word_embeddings": False,
        "max_position_embeddings": 1024,
        "eos_token_id": 7,
    }


def moe_raw() -> dict[str, Any]:
    """Return the content of a nested config.json of a mixture of experts."""
    text = dense_raw() | {
        "model_type": "qwen3_5_moe_text",
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
    }
    return {"model_type": "qwen3_5_moe", "text_config": text, "tie_word_embeddings": False}


def next_raw() -> dict[str, Any]:
    """Return the content of a flat config.json of the Qwen3-Next family."""
    return {
        "model_type": "qwen3_next",
        "vocab_size": 160,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "full_attention_interval": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 48,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 24,
        "linear_value_head_dim": 40,
        "linear_conv_kernel_dim": 4,
        "num_experts": 6,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 20,
        "shared_expert_intermediate_size": 28,
        "max_position_embeddings": 1024,
        "partial_rotary_factor": 0.25,
        "rope_theta": 1e7,
        "mlp_only_layers": [],
        "decoder_sparse_step": 1,
        "norm_topk_prob": True,
        "rope_scaling": None,
        "eos_token_id": 7,
    }


DENSE = config_of(dense_raw())
MOE = config_of(moe_raw())


def tiny_model(config: DeltaNetConfig, dtype: torch.dtype = torch.float32) -> Qwen35Model:
    return Qwen35Model(config, random_weights(config, 3, dtype))
