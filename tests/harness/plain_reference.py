"""Quantised checkpoints dequantised by the formats' definitions, a code at a time, with nothing of
what is tested: numpy in float32, and decoders written from the bits."""

import json
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

Floats = NDArray[np.float32]
_E2M1 = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]


def _e4m3(byte: int) -> float:
    exponent, mantissa = (byte >> 3) & 15, byte & 7
    size = mantissa * 2.0**-9 if exponent == 0 else (1 + mantissa / 8) * 2.0 ** (exponent - 7)
    return -size if byte & 0x80 else size


_E4M3 = np.array([_e4m3(byte) for byte in range(256)], dtype=np.float32)


def _floats(tensor: Tensor) -> Floats:
    if tensor.dtype is torch.float8_e4m3fn:
        return _E4M3[tensor.view(torch.uint8).numpy()]
    found: Floats = tensor.float().numpy()
    return found


def _fp8(weight: Floats, scale: Floats) -> Floats:
    out, width = weight.shape
    result = np.empty_like(weight)
    blocks = scale.shape == (-(-out // 128), -(-width // 128))
    for row in range(out):
        for begin in range(0, width, 128):
            if blocks:
                own = scale[row // 128, begin // 128]
            else:
                own = scale.reshape(-1)[row if scale.size > 1 else 0]
            result[row, begin : begin + 128] = weight[row, begin : begin + 128] * own
    return result


def _nvfp4(packed: Tensor, groups: Floats) -> Floats:
    low, high = packed.numpy() & 15, packed.numpy() >> 4
    codes = np.stack([low, high], axis=-1).reshape(packed.shape[0], -1)
    sizes = np.array(_E2M1, dtype=np.float32)[codes & 7]
    signed: Floats = np.where(codes & 8, -sizes, sizes).astype(np.float32)
    signed *= np.repeat(groups, 16, axis=1)
    return signed


def dequantised(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same checkpoint with whole weights in float32 under their plain names. REQUIRES: experts
    are split."""
    whole: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        module, _, leaf = name.rpartition(".")
        beside = {
            other.removeprefix(f"{module}.weight"): value
            for other, value in tensors.items()
            if other.startswith(f"{module}.weight") and other != name
        }
        if "scale" in leaf:
            continue
        if tensor.dtype is torch.float8_e4m3fn:
            scale = beside["_scale_inv"] if "_scale_inv" in beside else beside["_scale"]
            whole[name] = torch.from_numpy(_fp8(_floats(tensor), _floats(scale)))
        elif tensor.dtype is torch.uint8:
            values = _nvfp4(tensor, _floats(beside["_scale"]))
            if "_scale_2" in beside:
                values *= _floats(beside["_scale_2"]).reshape(())
            else:
                values /= _floats(beside["_global_scale"]).reshape(())
            whole[f"{module}.weight"] = torch.from_numpy(values)
        else:
            whole[name] = tensor
    return whole


def write_dequantised(source: Path, target: Path) -> None:
    """source: a folder of one file."""
    target.mkdir()
    save_file(dequantised(load_file(source / "model.safetensors")), target / "model.safetensors")
    config = json.loads((source / "config.json").read_text())
    del config["quantization_config"]
    (target / "config.json").write_text(json.dumps(config))
