"""Write a quantised copy of folder `source` to `target`. progress: counts files. Raises
QuantiseError, WeightsError, ModelConfigError, OSError; then the target does not exist."""

import json
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.config_json import QuantizationConfig
from tasuki.model.weights.published_matrix import is_coded
from tasuki.model.weights.quantised_segments import BLOCK, GROUP
from tasuki.model.weights.safetensors_files import StoredTensors
from tasuki.model.weights.safetensors_folder import INDEX, weight_files
from tasuki.utils.logs import Progress, no_progress

_MOST_E4M3 = 448.0
_MOST_E2M1 = 6.0
_BETWEEN = (0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0)
"""Boundaries for rounding to the e2m1 magnitudes 0, .5, 1, 1.5, 2, 3, 4, 6: their midpoints."""


class QuantiseError(ValueError):
    """Error: a checkpoint is unfit for quantisation. The message names the cause and the fix."""


def fp8_block(weight: Tensor) -> dict[str, Tensor]:
    """Quantise weight [out, in] to e4m3, with a bf16 scale for each block of 128 x 128, as Qwen
    publishes it. Return its tensors by the last part of their names."""
    rows, columns = weight.shape
    tall, wide = -(-rows // BLOCK), -(-columns // BLOCK)
    padded = weight.new_zeros(tall * BLOCK, wide * BLOCK, dtype=torch.float32)
    padded[:rows, :columns] = weight
    blocks = padded.view(tall, BLOCK, wide, BLOCK)
    scales = _scales(blocks.abs().amax((1, 3)), _MOST_E4M3, torch.bfloat16)
    codes = _e4m3(blocks / scales.float()[:, None, :, None]).view(tall * BLOCK, wide * BLOCK)
    return {"weight": codes[:rows, :columns].contiguous(), "weight_scale_inv": scales}


def fp8_channel(weight: Tensor) -> dict[str, Tensor]:
    """Quantise weight [out, in] to e4m3, a bf16 scale a row, as compressed-tensors' FP8-dynamic."""
    exact = weight.float()
    scales = _scales(exact.abs().amax(1, keepdim=True), _MOST_E4M3, torch.bfloat16)
    return {"weight": _e4m3(exact / scales.float()), "weight_scale": scales}


def fp8_tensor(weight: Tensor) -> dict[str, Tensor]:
    """Quantise weight [out, in] to e4m3, with one float32 scale, as ModelOpt's FP8 format."""
    exact = weight.float()
    scale = _scales(exact.abs().amax(), _MOST_E4M3)
    return {"weight": _e4m3(exact / scale), "weight_scale": scale}


def nvfp4_modelopt(weight: Tensor) -> dict[str, Tensor]:
    """Quantise to NVFP4: two e2m1 a byte, an e4m3 scale for 16 columns, one float32 factor."""
    scale = _scales(weight.float().abs().amax(), _MOST_E4M3 * _MOST_E2M1)
    packed, groups = _e2m1(weight.float(), scale)
    return {"weight": packed, "weight_scale": groups, "weight_scale_2": scale}


def nvfp4_compressed_tensors(weight: Tensor) -> dict[str, Tensor]:
    """Quantise to nvfp4_modelopt's numbers; the float32 factor is stored as a divisor."""
    divisor = 1 / _scales(weight.float().abs().amax(), _MOST_E4M3 * _MOST_E2M1)
    packed, groups = _e2m1(weight.float(), 1 / divisor)
    return {
        "weight_packed": packed,
        "weight_scale": groups,
        "weight_global_scale": divisor.reshape(1),
    }


def _scales(largest: Tensor, most: float, dtype: torch.dtype = torch.float32) -> Tensor:
    scales = (largest / most).to(dtype)
    # Numbers with a subnormal or zero scale are lost in any case.
    return torch.where(scales >= torch.finfo(dtype).tiny, scales, torch.ones_like(scales))


def _e4m3(values: Tensor) -> Tensor:
    return values.clamp(-_MOST_E4M3, _MOST_E4M3).to(torch.float8_e4m3fn)


def _e2m1(weight: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return e2m1 codes, two a byte [out, in / 2], and e4m3 group scales [out, in / 16]."""
    rows, columns = weight.shape
    if columns % GROUP:
        raise QuantiseError(
            f"a matrix of {columns} columns has no whole groups of {GROUP}: choose an FP8 format"
        )
    grouped = weight.view(rows, columns // GROUP, GROUP)
    # Use at least the smallest e4m3 number: a group of small numbers would otherwise be divided by
    # zero.
    groups = (grouped.abs().amax(-1) / _MOST_E2M1 / scale).clamp(2.0**-9, _MOST_E4M3)
    groups = groups.to(torch.float8_e4m3fn)
    scaled = grouped / (groups.float() * scale)[..., None]
    codes = torch.bucketize(scaled.abs(), scaled.new_tensor(_BETWEEN)).to(torch.uint8)
    codes |= torch.signbit(scaled).to(torch.uint8) << 3
    codes = codes.view(rows, columns)
    return codes[:, 0::2] | codes[:, 1::2] << 4, groups


Codec = Callable[[Tensor], dict[str, Tensor]]
MakeConfig = Callable[[Sequence[str]], dict[str, Any]]
"""Function returning `quantization_config`, given the names of the modules left unquantised."""

_MLP = r"mlp\.(?:experts\.\d+\.|shared_expert\.)?(?:gate|up|down)_proj"
_ATTENTION = r"self_attn\.[qkvo]_proj"
_GDN = r"linear_attn\.(?:in_proj_qkvz?|in_proj_z|out_proj)"


@dataclass(frozen=True)
class Recipe:
    """A published format. modules: pairs (name pattern, codec). The first pattern matching the end
    of a module's name selects its codec."""

    modules: tuple[tuple[str, Codec], ...]
    config: MakeConfig

    def codec(self, module: str) -> Codec | None:
        """Return the codec for a module's published name; None: the module stays unquantised."""
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


def _compressed(form: str, weights: dict[str, Any]) -> MakeConfig:
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


def _modelopt(algorithm: str) -> MakeConfig:
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
"""Quantisation recipes by the names accepted by `tasuki quantise --format`."""


_WEIGHT = ".weight"


def quantise_folder(
    source: Path, target: Path, recipe: Recipe, progress: Progress = no_progress
) -> None:
    """Write a quantised copy of the checkpoint folder `source` to `target`, a folder not existing
    yet. progress: called with the number of files done and in all. Raises QuantiseError,
    WeightsError, ModelConfigError or OSError; after an error nothing is left of the copy."""
    if target.exists():
        raise QuantiseError(f"{target}: is there already; name a folder that is not")
    path = source / "config.json"
    config = _read_config(path)
    if QuantizationConfig.from_dict(config, str(path)).method is not None:
        raise QuantiseError(f"{source}: is quantised already; give a BF16 checkpoint")
    partial = target.with_name(f"{target.name}.partial")
    if partial.exists():
        raise QuantiseError(f"{partial}: is left of a run that was stopped; delete it")
    partial.mkdir(parents=True)
    try:
        _write(source, partial, config, recipe, progress)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _write(
    source: Path, target: Path, config: dict[str, Any], recipe: Recipe, progress: Progress
) -> None:
    files = weight_files(source)
    where: dict[str, str] = {}
    plain: list[str] = []
    size = 0
    for done, path in enumerate(files, 1):
        made: dict[str, Tensor] = {}
        for module, tensor in _modules(path):
            codec = recipe.codec(module.removesuffix(_WEIGHT)) if tensor.ndim == 2 else None
            if codec is None:
                made[module] = tensor
                if module.endswith(_WEIGHT) and tensor.ndim == 2 and "embed" not in module:
                    plain.append(module.removesuffix(_WEIGHT))
                continue
            made.update(_coded(path, module, tensor, codec))
        save_file(made, target / path.name, metadata={"format": "pt"})
        where.update(dict.fromkeys(made, path.name))
        size += sum(tensor.nbytes for tensor in made.values())
        progress(done, len(files))
    quantization = recipe.config(sorted(plain))
    _write_json(target / "config.json", config | {"quantization_config": quantization})
    if quantization["quant_method"] == "modelopt":
        said = {name: value for name, value in quantization.items() if name != "quant_method"}
        producer = {"producer": {"name": "modelopt"}, "quantization": said}
        _write_json(target / "hf_quant_config.json", producer)
    if (source / INDEX).exists():
        index = {"metadata": {"total_size": size}, "weight_map": where}
        _write_json(target / INDEX, index)
    written = {path.name for path in target.iterdir()}
    for path in source.iterdir():
        if path.is_file() and path.suffix != ".safetensors" and path.name not in written:
            shutil.copyfile(path, target / path.name)


def _coded(path: Path, name: str, tensor: Tensor, codec: Codec) -> dict[str, Tensor]:
    if not tensor.isfinite().all():
        raise QuantiseError(f"{path}: tensor {name} is not finite; fetch the checkpoint again")
    try:
        made = codec(tensor)
    except QuantiseError as error:
        raise QuantiseError(f"{path}: tensor {name}: {error}") from error
    stem = name.removesuffix(_WEIGHT)
    return {f"{stem}.{leaf}": part for leaf, part in made.items()}


def _modules(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the published name and the tensor of each weight in a file. Fused experts are split
    into one tensor per expert."""
    tensors = StoredTensors([path])
    try:
        for name in tensors:
            if is_coded(tensors.dtype(name)):
                raise QuantiseError(
                    f"{path}: tensor {name} has dtype {tensors.dtype(name)}: it is quantised "
                    "already; give a BF16 checkpoint"
                )
            tensor = tensors.read(name)
            if name.endswith(".experts.gate_up_proj"):
                stem = name.removesuffix("gate_up_proj")
                for expert, both in enumerate(tensor):
                    for leaf, part in zip(("gate_proj", "up_proj"), both.chunk(2), strict=True):
                        yield f"{stem}{expert}.{leaf}{_WEIGHT}", part.clone()
            elif name.endswith(".experts.down_proj"):
                stem = name.removesuffix("down_proj")
                for expert, part in enumerate(tensor):
                    yield f"{stem}{expert}.down_proj{_WEIGHT}", part.clone()
            else:
                yield name, tensor
    finally:
        tensors.close()


def _read_config(path: Path) -> dict[str, Any]:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise QuantiseError(
            f"{path}: cannot be read ({error}); give a checkpoint folder"
        ) from error
    if not isinstance(raw, dict):
        raise QuantiseError(f"{path}: holds no JSON object; give a checkpoint folder")
    return raw


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")
