"""A checkpoint folder, quantised into another: file by file, so that one output file is all that is
held in memory. The target appears under its name when it is whole.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from tasuki.model.config_json import QuantizationConfig
from tasuki.model.weights.published_matrix import is_coded
from tasuki.model.weights.safetensors_files import StoredTensors
from tasuki.model.weights.safetensors_folder import INDEX, weight_files
from tasuki.utils.logs import Progress, no_progress

from .recipe import Codec, QuantiseError, Recipe

_WEIGHT = ".weight"


def quantise_folder(
    source: Path, target: Path, recipe: Recipe, progress: Progress = no_progress
) -> None:
    """progress: counts files. Raises QuantiseError, WeightsError, ModelConfigError, OSError; then
    target is not there."""
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
    """Published names and tensors of a file; fused experts one by one, as others publish them."""
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
