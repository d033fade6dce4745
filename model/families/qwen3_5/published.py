"""Published shapes of the Qwen3.5 models by name, for uses without weights: replays, memory plans,
benchmarks."""

from typing import Any

from tasuki.model.vision.config import PictureTokens, VisionConfig

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
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "linear_num_value_heads")
_OF_DENSE = (*_SIZES, "num_key_value_heads", "intermediate_size")
_OF_MOE = (
    *(*_SIZES, "num_experts", "num_experts_per_tok"),
    *("moe_intermediate_size", "shared_expert_intermediate_size"),
)


def _with(common: dict[str, Any], names: tuple[str, ...], *sizes: int) -> dict[str, Any]:
    return common | dict(zip(names, sizes, strict=True))


PUBLISHED: dict[str, dict[str, Any]] = {
    "0.8b": _with(_SMALL, _OF_DENSE, 1024, 24, 8, 16, 2, 3584),
    "2b": _with(_SMALL, _OF_DENSE, 2048, 24, 8, 16, 2, 6144),
    "4b": _with(_SMALL, _OF_DENSE, 2560, 32, 16, 32, 4, 9216),
    "9b": _with(_DENSE, _OF_DENSE, 4096, 32, 16, 32, 4, 12288),
    "27b": _with(_DENSE, _OF_DENSE, 5120, 64, 24, 48, 4, 17408),
    "35b-a3b": _with(_MOE, _OF_MOE, 2048, 40, 16, 32, 256, 8, 512, 512),
    "122b-a10b": _with(_MOE, _OF_MOE, 3072, 48, 32, 64, 256, 8, 1024, 1024),
    "397b-a17b": _with(_MOE, _OF_MOE, 4096, 60, 32, 64, 512, 10, 1024, 1024),
}


_TOWERS = {"0.8b": (12, 768, 12, 3072), "2b": (24, 1024, 16, 4096), "4b": (24, 1024, 16, 4096)}
"""Depth, width, heads and inner width of small models' vision towers. All others have the last
one's."""
_LARGE_TOWER = (27, 1152, 16, 4304)


def published_tower(name: str) -> VisionConfig | None:
    """Return the vision tower of a published model, by its size or its huggingface.co name; None
    for another name."""
    size = size_of(name)
    if size not in PUBLISHED:
        return None
    depth, hidden, heads, intermediate = _TOWERS.get(size, _LARGE_TOWER)
    return VisionConfig(
        depth=depth,
        hidden=hidden,
        heads=heads,
        intermediate=intermediate,
        out_hidden=PUBLISHED[size]["hidden_size"],
        patch=16,
        frames=2,
        merge=2,
        side=48,
        rope_theta=10000.0,
        norm_eps=1e-6,
        rotary_sections=(11, 11, 10),
        tokens=PictureTokens(248053, 248054, 248056, 248057),
    )


def size_of(name: str) -> str:
    return name.lower().removeprefix("qwen/").removeprefix("qwen3.5-")
