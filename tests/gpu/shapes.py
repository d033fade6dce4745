"""Random models with head sizes supported by GPU kernels, small enough for many engines."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch

from tasuki.bench.measure.rig import made_up_vocabulary
from tasuki.engine.assembly.parts import EngineParts, build_arena
from tasuki.engine.config import EngineConfig
from tasuki.model.families.loading import build_model
from tasuki.model.families.qwen3_5.weights import assemble
from tasuki.model.weights.source import RandomSource
from tasuki.pycache._cpp_cache import StepCounter
from tests.harness import model_shapes
from tests.harness.engines import GrammarsAtOnce
from tests.harness.qwen35 import config_of

VOCAB = 1000


def dense_raw() -> dict[str, Any]:
    return model_shapes.dense_raw() | {
        "vocab_size": VOCAB,
        "hidden_size": 256,
        "num_attention_heads": 8,
        "head_dim": 256,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "intermediate_size": 512,
        "max_position_embeddings": 8192,
    }


def moe_raw() -> dict[str, Any]:
    return dense_raw() | {
        "model_type": "qwen3_5_moe_text",
        "num_experts": 32,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 128,
    }


CONFIGS = {"dense": config_of(dense_raw()), "moe": config_of(moe_raw())}


@cache
def parts_of(shape: str, config: EngineConfig, draft_layers: int = 0) -> EngineParts:
    """Return parts with the same weights on every device, in the config's dtype."""
    model = replace(CONFIGS[shape], draft_layers=draft_layers)
    dtype: torch.dtype = getattr(torch, config.compute_dtype)
    device = torch.device(config.device)
    weights = assemble(model, RandomSource(3), dtype, device)
    arena = build_arena(config, model, device)
    grammars = GrammarsAtOnce(made_up_vocabulary(model.vocab))
    return EngineParts(model, build_model(model, weights), arena, StepCounter(), grammars=grammars)
