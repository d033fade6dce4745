"""A checkpoint with random weights and a vision tower, in Hugging Face layout.

tasuki, vLLM and transformers read the same folder, so their answers take the same work. Weights are
drawn on the device, and written by threads meanwhile. Owns nothing after its call.
"""

import json
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.families.loading import assemble
from tasuki.model.families.registry import config_of, published
from tasuki.model.vision.config import VisionConfig
from tasuki.model.vision.weights import PREFIXES, assemble_tower
from tasuki.model.weights.matrix import WHOLE, Part
from tasuki.model.weights.source import PlainSource, RandomSource

from .vocabulary import special_id, write_text_files

_SEED = 1
_FILE_BYTES = 2 << 30
_WRITERS = 4
_TEXT_PREFIX = "model.language_model."
_TINY: dict[str, Any] = {
    **{"model_type": "qwen3_5_text", "vocab_size": 2048, "hidden_size": 64},
    **{"intermediate_size": 96, "num_hidden_layers": 4, "full_attention_interval": 4},
    **{"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64},
    **{"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_conv_kernel_dim": 4},
    **{"linear_key_head_dim": 32, "linear_value_head_dim": 32, "rms_norm_eps": 1e-6},
    **{"max_position_embeddings": 262144, "partial_rotary_factor": 0.25, "rope_theta": 1e7},
}
_SMALL_TOWER = (2, 64, 4, 100)
_TOWERS = {
    "tiny": _SMALL_TOWER,
    "0.8b": (12, 768, 12, 3072),
    "2b": (24, 1024, 16, 4096),
    "4b": (24, 1024, 16, 4096),
    "9b": (27, 1152, 16, 4304),
    "27b": (27, 1152, 16, 4304),
}
"""Depth, width, heads and MLP of the towers, by the language model's size."""
SHAPES = tuple(_TOWERS)


def file_of(shape: str) -> dict[str, Any]:
    """Return the content of config.json. shape: one of SHAPES."""
    text = dict(_TINY if shape == "tiny" else published(shape))
    layers, vocabulary = text["num_hidden_layers"], text["vocab_size"]
    tied = bool(text.get("tie_word_embeddings"))
    pairs = int(text["head_dim"] * text["partial_rotary_factor"]) // 2
    sections = [(pairs + 2) // 3, (pairs + 1) // 3, pairs // 3]
    text |= {
        "model_type": "qwen3_5_text",
        "layer_types": [
            "full_attention" if layer % 4 == 3 else "linear_attention" for layer in range(layers)
        ],
        "attn_output_gate": True,
        "mamba_ssm_dtype": "float32",
        "hidden_act": "silu",
        "dtype": "bfloat16",
        "tie_word_embeddings": tied,
        "eos_token_id": special_id("<|im_end|>", vocabulary),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": text.pop("rope_theta"),
            "partial_rotary_factor": text.pop("partial_rotary_factor"),
            "mrope_section": sections,
            "mrope_interleaved": True,
        },
    }
    depth, hidden, heads, inner = _TOWERS[shape]
    return {
        "model_type": "qwen3_5",
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "dtype": "bfloat16",
        "tie_word_embeddings": tied,
        "image_token_id": special_id("<|image_pad|>", vocabulary),
        "video_token_id": special_id("<|video_pad|>", vocabulary),
        "vision_start_token_id": special_id("<|vision_start|>", vocabulary),
        "vision_end_token_id": special_id("<|vision_end|>", vocabulary),
        "text_config": text,
        "vision_config": {
            "model_type": "qwen3_5",
            "depth": depth,
            "hidden_size": hidden,
            "num_heads": heads,
            "intermediate_size": inner,
            "out_hidden_size": text["hidden_size"],
            "hidden_act": "gelu_pytorch_tanh",
            "patch_size": 16,
            "spatial_merge_size": 2,
            "temporal_patch_size": 2,
            "in_channels": 3,
            "num_position_embeddings": 2304,
            "deepstack_visual_indexes": [],
        },
    }


def vision_config(shape: str) -> VisionConfig:
    found = VisionConfig.from_dict(file_of(shape))
    assert found is not None
    return found


def write_checkpoint(folder: Path, shape: str, device: torch.device) -> int:
    """Write the checkpoint folder, and return the bytes of its weights. shape: one of SHAPES."""
    folder.mkdir(parents=True, exist_ok=True)
    config = file_of(shape)
    write_text_files(folder, config["text_config"]["vocab_size"])
    with ThreadPoolExecutor(_WRITERS) as pool:
        files = _Files(folder, pool)
        text = _Written(RandomSource(_SEED, device), files, _TEXT_PREFIX)
        assemble(config_of(config), text, torch.bfloat16, "meta")
        tower = _Written(TowerSource(device), files, PREFIXES[0])
        assemble_tower(vision_config(shape), tower, torch.bfloat16, "meta")
        written = files.end()
    # Last, because a folder with it is whole.
    (folder / "config.json").write_text(json.dumps(config, indent=1))
    return written


class TowerSource(RandomSource):
    """A source of a tower's random weights. Norms scale by about 1, as trained ones do."""

    def __init__(self, device: torch.device | str) -> None:
        super().__init__(_SEED, device)

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        found = super().read(f"visual.{name}", shape, dtype, part)
        return found + 1 if "norm" in name and name.endswith(".weight") else found


class _Written(PlainSource):
    """A source whose tensors are written to files, each once, under their published names."""

    def __init__(self, source: PlainSource, files: "_Files", prefix: str) -> None:
        self._source = source
        self._files = files
        self._prefix = prefix

    def has(self, name: str) -> bool:
        return self._source.has(name)

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        found = self._source.read(name, shape, dtype, part)
        whole = name if name.startswith("lm_head.") else self._prefix + name
        self._files.add(whole, found.to(torch.bfloat16).cpu())
        return found


class _Files:
    """The safetensors files of a folder, some gigabytes each."""

    def __init__(self, folder: Path, pool: ThreadPoolExecutor) -> None:
        self._folder = folder
        self._pool = pool
        self._kept: dict[str, Tensor] = {}
        self._bytes = 0
        self._places: dict[str, str] = {}
        self._writes: list[Future[None]] = []

    def add(self, name: str, tensor: Tensor) -> None:
        self._kept[name] = tensor
        self._bytes += tensor.nbytes
        if sum(kept.nbytes for kept in self._kept.values()) > _FILE_BYTES:
            self._write()

    def end(self) -> int:
        """Write the rest and the index. Return the bytes of all tensors. Raises OSError."""
        self._write()
        for write in self._writes:
            write.result()
        index = {"metadata": {"total_size": self._bytes}, "weight_map": self._places}
        (self._folder / "model.safetensors.index.json").write_text(json.dumps(index))
        return self._bytes

    def _write(self) -> None:
        file, kept = f"model-{len(self._writes) + 1:05d}.safetensors", self._kept
        self._kept = {}
        self._places.update(dict.fromkeys(kept, file))
        path = self._folder / file
        self._writes.append(self._pool.submit(save_file, kept, path, {"format": "pt"}))
