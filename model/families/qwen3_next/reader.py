"""The reader of the family's config.json: flat, with experts and plain rotary positions. Published
shapes by name, for uses without weights."""

from typing import Any

from tasuki.model.config import DeltaNetConfig
from tasuki.model.config_json import ConfigFile
from tasuki.model.families.qwen3_5.reader import ConfigReader

MODEL_TYPES = frozenset({"qwen3_next"})


def read_config(file: ConfigFile) -> DeltaNetConfig:
    """Return the model's shape. Raises ModelConfigError, also for what this family has not: a
    nested text model, layers without experts, sections of rotary positions, an assumed base."""
    fields = file.outer
    if file.is_nested:
        raise fields.error(
            "text_config", "is an object", "take a flat config.json, as published ones are"
        )
    rope = fields.object("rope_parameters") or fields
    if "mrope_section" in rope:
        raise rope.error(
            "mrope_section", "is given", "remove it: the family has plain rotary positions"
        )
    for holder in (fields.object("rope_scaling"), fields.object("rope_parameters"), fields):
        if holder is not None and "rope_theta" in holder:
            break
    else:
        raise fields.error("rope_theta", "is missing", "copy it from the published config")
    return ConfigReader(file, frozenset(), MODEL_TYPES).config()


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
