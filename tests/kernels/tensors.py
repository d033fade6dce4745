"""Helpers of kernel tests: random tensors, numbers on a device, comparison relative to the values'
size."""

from typing import Any

import torch
from torch import Tensor

from tasuki.model.config import DeltaNetConfig
from tests.harness.qwen35 import config_of

DTYPE_NAMES = {torch.float32: "float32", torch.bfloat16: "bfloat16"}


def noise(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def count(rows: int, device: torch.device) -> Tensor:
    """Return the number of existing rows of a batch, as kernels read it."""
    return torch.tensor([rows], dtype=torch.int32, device=device)


def int32(values: object, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=device)


def close(actual: Tensor, expected: Tensor, tolerance: float) -> None:
    """Assert closeness relative to the largest value; NaN equals NaN."""
    actual, expected = actual.cpu().float(), expected.float()
    scale = expected.nan_to_num().abs().max().item()
    torch.testing.assert_close(
        actual, expected, rtol=tolerance, atol=tolerance * scale, equal_nan=True
    )


def small_config(layers: list[str], **fields: Any) -> DeltaNetConfig:
    """Return a config with the fields read by an operator, and little else."""
    shape = {
        "model_type": "qwen3_5_text",
        "vocab_size": 8,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": len(layers),
        "layer_types": layers,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 1,
        "eos_token_id": 0,
    }
    return config_of(shape | fields)
