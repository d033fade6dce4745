"""Published formats by name: which modules are quantised, how, and what config.json says of it.

What decays the state (in_proj_a, in_proj_b), routers, gates, norms, embeddings, the head and the
vision tower stay as they are in all of them.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from .codecs import (
    fp8_block,
    fp8_channel,
    fp8_tensor,
    nvfp4_compressed_tensors,
    nvfp4_modelopt,
)

Codec = Callable[[Tensor], dict[str, Tensor]]

_MLP = r"mlp\.(?:experts\.\d+\.|shared_expert\.)?(?:gate|up|down)_proj"
_ATTENTION = r"self_attn\.[qkvo]_proj"
_GDN = r"linear_attn\.(?:in_proj_qkv|in_proj_z|out_proj)"


@dataclass(frozen=True)
class Recipe:
    """modules: a codec for each kind of module, the first pattern that ends a name. config:
    `quantization_config`, given the modules that stay plain."""

    modules: tuple[tuple[str, Codec], ...]
    config: Callable[[Sequence[str]], dict[str, Any]]

    def codec(self, module: str) -> Codec | None:
        """Of a module by its published name; None: it stays plain."""
        if ".visual." in module:
            return None
        for pattern, codec in self.modules:
            if re.search(rf"(?:^|\.)layers\.\d+\.{pattern}$", module):
                return codec
        return None


def _fp8_config(plain: Sequence[str]) -> dict[str, Any]:
    return {
        "quant_method": "fp8",
        "fmt": "e4m3",
        "activation_scheme": "dynamic",
        "weight_block_size": [128, 128],
        "modules_to_not_convert": [*plain],
    }


def _compressed(form: str, weights: dict[str, Any]) -> Callable[[Sequence[str]], dict[str, Any]]:
    def config(plain: Sequence[str]) -> dict[str, Any]:
        group = {"targets": ["Linear"], "format": form, "weights": weights}
        return {
            "quant_method": "compressed-tensors",
            "format": form,
            "quantization_status": "compressed",
            "kv_cache_scheme": None,
            "config_groups": {"group_0": group | {"input_activations": None}},
            "ignore": [*plain],
        }

    return config


def _modelopt(algorithm: str) -> Callable[[Sequence[str]], dict[str, Any]]:
    def config(plain: Sequence[str]) -> dict[str, Any]:
        return {
            "quant_method": "modelopt",
            "quant_algo": algorithm,
            "kv_cache_quant_algo": None,
            "exclude_modules": [*plain],
        }

    return config


_FLOAT = {"type": "float", "symmetric": True, "dynamic": False}
_CHANNELS = _FLOAT | {"num_bits": 8, "strategy": "channel"}
_GROUPS = _FLOAT | {"num_bits": 4, "strategy": "tensor_group", "group_size": 16}
_ALL = f"(?:{_MLP}|{_ATTENTION}|{_GDN})"

RECIPES: Mapping[str, Recipe] = {
    "fp8": Recipe(((_ALL, fp8_block),), _fp8_config),
    "fp8-channel": Recipe(
        ((f"(?:{_MLP}|{_ATTENTION})", fp8_channel),), _compressed("float-quantized", _CHANNELS)
    ),
    "fp8-tensor": Recipe(((_ALL, fp8_tensor),), _modelopt("FP8")),
    "nvfp4": Recipe(((_MLP, nvfp4_modelopt),), _modelopt("NVFP4")),
    "nvfp4-ct": Recipe(
        ((f"(?:{_MLP}|{_ATTENTION})", nvfp4_compressed_tensors),),
        _compressed("nvfp4-pack-quantized", _GROUPS),
    ),
    "mixed": Recipe(
        ((_MLP, nvfp4_modelopt), (f"(?:{_ATTENTION}|{_GDN})", fp8_tensor)),
        _modelopt("MIXED_PRECISION"),
    ),
}
"""By what `tasuki quantise --format` takes."""
