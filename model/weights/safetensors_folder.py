"""The safetensors files of one checkpoint folder: which there are, what they hold, their digest.

Owns names and files: single file or shards with an index, nested and flat prefixes. Does not know
what a tensor means. Vision tower and draft head are never read. Reading is lazy, one slice of a
tensor at a time, from files that stay open until the `Checkpoint` is closed; one thread uses it.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.utils.progress import Progress, no_progress

from .layers import WHOLE, ModelWeights, Part, WeightsError, assemble

_DTYPES = frozenset({"F32", "BF16", "F16"})
_PREFIXES = ("model.language_model.", "model.")
_INDEX = "model.safetensors.index.json"


def load_weights(
    directory: Path | str,
    config: ModelConfig,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
    progress: Progress = no_progress,
) -> ModelWeights:
    """Weights in `dtype`; norms, decay and dt_bias stay float32. Raises WeightsError."""
    with Checkpoint(Path(directory)) as source:
        return assemble(config, source, dtype, device, progress)


def weights_digest(directory: Path | str) -> str:
    """SHA-256 (hex) over the contents of the folder's safetensors files in name order.

    Reads every byte, so call it once a process. Raises WeightsError.
    """
    total = hashlib.sha256()
    for path in weight_files(Path(directory)):
        with _reading(path), path.open("rb") as file:
            total.update(hashlib.file_digest(file, "sha256").digest())
    return total.hexdigest()


def weight_files(directory: Path) -> list[Path]:
    """The files that hold the weights, by name: those the index lists, else all there are."""
    index = directory / _INDEX
    if index.exists():
        try:
            names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        except (OSError, ValueError, KeyError, AttributeError) as error:
            raise WeightsError(f"{index}: has no readable weight_map; fetch it again") from error
        files = sorted(directory / str(name) for name in names)
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{directory}: holds no *.safetensors file; give a checkpoint folder")
    return files


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turns what a damaged or absent file raises into WeightsError."""
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error}); fetch it again") from error
    except SafetensorError as error:
        raise WeightsError(f"{path}: is truncated or corrupt ({error}); fetch it again") from error


class Checkpoint:
    """The `TensorSource` of a folder. Opening reads headers only, and opens every file once.

    A context manager: leaving it closes the files, after which nothing may be read. A tensor that
    was read without a conversion keeps the pages of its own bytes. Raises WeightsError.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._files: dict[str, tuple[Path, Any]] = {}
        with ExitStack() as opened:
            for path in weight_files(directory):
                with _reading(path):
                    file = opened.enter_context(safe_open(path, framework="pt"))
                    self._files.update(dict.fromkeys(file.keys(), (path, file)))
            self._prefix = self._found_prefix()
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Idempotent."""
        self._opened.close()

    def _found_prefix(self) -> str:
        for prefix in _PREFIXES:
            if f"{prefix}embed_tokens.weight" in self._files:
                return prefix
        wanted = " or ".join(f"{prefix}embed_tokens.weight" for prefix in _PREFIXES)
        raise WeightsError(f"{self._directory}: tensor {wanted} is missing; is it a qwen3_5 model?")

    def has(self, name: str) -> bool:
        return self._published(name) in self._files

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        full = self._published(name)
        if full not in self._files:
            raise WeightsError(
                f"{self._directory}: tensor {full} is missing; "
                "fetch all shards, or correct config.json if the model has no such layer"
            )
        path, file = self._files[full]
        with _reading(path):
            found = file.get_slice(full)
            got = tuple(found.get_shape())
            if got != shape:
                raise WeightsError(
                    f"{path}: tensor {full} has shape {list(got)}, "
                    f"config.json wants {list(shape)}; take both files from the same model"
                )
            if found.get_dtype() not in _DTYPES:
                raise WeightsError(
                    f"{path}: tensor {full} has dtype {found.get_dtype()}; quantised weights are "
                    "not supported, convert the checkpoint to BF16"
                )
            tensor: Tensor = found[part] if part else file.get_tensor(full)
        return tensor.contiguous().to(dtype)

    def _published(self, name: str) -> str:
        return name if name.startswith("lm_head.") else self._prefix + name
