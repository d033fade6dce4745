"""The safetensors files of one checkpoint folder: their names, their tensors, their digest.

Owns names and files: single file or shards with an index, nested and flat prefixes. Does not know
the meaning of a tensor. The vision tower is never read. The draft layer is read if the config has
one. Reading is lazy, one slice of a tensor at a time. The files stay open until the `Checkpoint` is
closed; one thread uses it.

check_left_over() rejects a scale or a quantised tensor used by no weight, because its weight was
read in a wrong format. Plain tensors may be unread: the vision tower, a draft layer not served,
buffers.
"""

import hashlib
import json
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

import torch
from torch import Tensor

from tasuki.model.config_json import QuantizationConfig, check_draft_layer_config

from .matrix import WHOLE, Kind, Matrix, Part, WeightsError
from .published_matrix import MissingWeight, PublishedMatrix, is_coded
from .safetensors_files import StoredTensors
from .source import stacked
from .stacked_tensors import Companions, StackedTensors

log = logging.getLogger(__name__)

_CODED = re.compile(r"scale|zero_point|qzeros|qweight|packed|g_idx|bitmask|absmax|weight_shape")
_OF_CACHE = re.compile(r"(^|[._])([qkv]|kv|attn|prob|output)_scale$")
"""Pattern of names of scales for keys, values and queries. These scales are not used, because the
cache has the model's own dtype."""
_OF_LAYER = re.compile(r"(^|\.)(language_model|model)\.layers\.\d+\.")
"""Pattern of a tensor's name in a text model's layer, under any prefix. A layer under a foreign
prefix is never read."""


Elsewhere = Callable[[str], bool]
"""Function returning true if another rank reads the tensor with this name."""


def nowhere_else(name: str) -> bool:
    """Return false, because with one rank no other rank reads a tensor."""
    return False


def check_left_over(
    tensors: StoredTensors, prefix: str, elsewhere: Elsewhere = nowhere_else, *, drafts: bool
) -> None:
    """Raise WeightsError if a scale or a quantised tensor was not read. Call it after all reading.
    prefix: prefix of the text model's tensor names. elsewhere: returns true if another rank reads
    the tensor. drafts: the draft layer was read too."""
    of_cache = 0
    for name in tensors.unread():
        if elsewhere(name) or not (
            is_of_text_model(name, prefix)
            or _OF_LAYER.search(name)
            or (drafts and is_of_draft_layer(name))
        ):
            continue
        leaf = name.rpartition(".")[2]
        if _OF_CACHE.search(leaf):
            of_cache += 1
        elif _CODED.search(leaf) or is_coded(tensors.dtype(name)):
            raise WeightsError(
                f"{tensors.path(name)}: tensor {name} ({tensors.dtype(name)}) is read by nobody; "
                f"beside it {_beside(tensors, name)}: fetch config.json and all shards from the "
                "same model, or convert the checkpoint to BF16"
            )
    if of_cache:
        log.info(
            "%d scales of a quantised KV cache are not used: it has the model's dtype", of_cache
        )


def is_of_text_model(name: str, prefix: str) -> bool:
    """Return true if the tensor belongs to the text model, and not to the vision tower or the draft
    layer."""
    if name.startswith(("lm_head.", "language_model.lm_head.")):
        return True
    inner = name.removeprefix(prefix)
    return inner != name and not inner.startswith(("visual.", "vision", "mtp.", "language_model."))


def is_of_draft_layer(name: str) -> bool:
    return name.startswith(("mtp.", "language_model.mtp."))


def _beside(tensors: StoredTensors, name: str) -> str:
    """Return a text with the other tensors of the same module, for an error message."""
    module = name.rpartition(".")[0]
    near = [f"{other} ({tensors.dtype(other)})" for other in tensors if _is_near(other, name)]
    return f"are {', '.join(near[:4])}" if near else f"{module} holds nothing"


def _is_near(other: str, name: str) -> bool:
    module, leaf = name.rpartition(".")[::2]
    if other == name or other.rpartition(".")[0] != module:
        return False
    # Fused experts are tensors of one module with different starts of their names.
    beside = other.rpartition(".")[2]
    return beside.startswith("weight") or leaf.startswith(beside)


_OUTER = {"model.language_model.": "", "language_model.model.": "language_model.", "model.": ""}
"""Prefix of the head's tensor names, by the prefix of the text model's names."""
_UNREADABLE = (OSError, ValueError, LookupError, AttributeError, TypeError, RecursionError)
_UNSERVED_DRAFT_LAYER = re.compile(r"mtp\.(layers\.[1-9]\d*|embed_tokens)\.")
INDEX = "model.safetensors.index.json"


_SERVED = ("F8_E4M3", "U8")
_FP8_CAPABILITY = (8, 9)


class UnservedKind(WeightsError):
    """Error: the device has no kernels for the storage format of the weights."""


def check_kernels(directory: Path | str, device: torch.device) -> None:
    """Raise UnservedKind if the folder's weights are quantised and a device other than the CPU has
    no kernels for them. No weight is allocated before."""
    if device.type != "cpu":
        with Checkpoint(Path(directory)) as source:
            source.check_kernels(device)


def multiplies_fp8(device: torch.device) -> bool:
    """Return true if the GPU has instructions for FP8 (e4m3), and also if this machine has no
    GPU."""
    if not torch.cuda.is_available():
        return True
    return torch.cuda.get_device_capability(device) >= _FP8_CAPABILITY


def _named(device: torch.device) -> str:
    if not torch.cuda.is_available():
        return device.type
    return f"{device.type} ({torch.cuda.get_device_name(device)})"


def has_draft_layer(directory: Path | str) -> bool:
    """Return true if the folder has any weight of a draft layer. An incomplete draft layer counts,
    and reading it later raises an error. Raises WeightsError and ModelConfigError, also for several
    draft layers, or one with its own embedding."""
    folder = Path(directory)
    if not any(folder.glob("*.safetensors")):
        return False
    found = [name for name in _tensor_names(folder) if is_of_draft_layer(name)]
    for name in found:
        if _UNSERVED_DRAFT_LAYER.search(name):
            raise WeightsError(
                f"{directory}: tensor {name} is of a draft layer that is not served, which is "
                "one layer over the model's own embedding; give --draft-layer off"
            )
    if found:
        check_draft_layer_config(folder)
    return bool(found)


def rows_together(directory: Path | str, head: tuple[int, int]) -> int:
    """Return the number of neighbouring rows with one common scale in the model's own head. The
    result is 1 without scales, or with one for each row. head: shape of the head. Raises
    WeightsError, ModelConfigError."""
    with Checkpoint(Path(directory)) as source:
        return source.published("lm_head.weight", head).rows_together


_DIGESTED_AT_ONCE = 8
"""Number of files hashed simultaneously. A core hashes 0.7 to 1.9 GB/s, and Python's global lock is
free meanwhile."""


def file_digest(path: Path) -> bytes:
    """Return the file's SHA-256. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def weights_digest(directory: Path | str, digest_of: Callable[[Path], bytes] = file_digest) -> str:
    """Return the SHA-256 (hex) over the digests of the folder's safetensors files in name order.

    digest_of: returns a file's digest; it runs on several threads. Every byte is read, so call this
    once per process. Raises WeightsError.
    """

    def digest(path: Path) -> bytes:
        try:
            return digest_of(path)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error}); fetch it again") from error

    total = hashlib.sha256()
    with ThreadPoolExecutor(_DIGESTED_AT_ONCE) as threads:
        for found in threads.map(digest, weight_files(Path(directory))):
            total.update(found)
    return total.hexdigest()


def weight_files(directory: Path) -> list[Path]:
    """Return the paths of the weight files in name order: those in the index, or all without an
    index. Raises WeightsError if there are none."""
    index = directory / INDEX
    if index.exists():
        files = sorted({directory / name for name in _weight_map(index).values()})
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise WeightsError(f"{directory}: holds no *.safetensors file; give a checkpoint folder")
    return files


def _tensor_names(directory: Path) -> Iterable[str]:
    """Return the names of the folder's tensors. With an index, no weight file is opened. Raises
    WeightsError."""
    index = directory / INDEX
    return _weight_map(index) if index.exists() else StoredTensors(weight_files(directory))


def _weight_map(index: Path) -> dict[str, str]:
    """Return each tensor's file name from the index, by tensor name. Raises WeightsError."""
    try:
        found = dict(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
        if all(Path(file).name == file and "\0" not in file for file in set(found.values())):
            return found
        raise TypeError("a file is no name in this folder")
    except _UNREADABLE as error:
        raise WeightsError(f"{index}: has no readable weight_map; fetch it again") from error


class Checkpoint:
    """The `TensorSource` of a checkpoint folder. Opening reads headers only, and opens every file
    once.

    A context manager: its exit closes the files, and later reads raise WeightsError. A tensor read
    without a conversion is a view of the mapped file. Raises WeightsError. Raises ModelConfigError
    if config.json has an unsupported quantization_config.
    """

    def __init__(
        self,
        directory: Path,
        tensors: type[StoredTensors] = StoredTensors,
        prefix: str | None = None,
    ) -> None:
        """tensors: class for opening the files. With `StoredShapes`, tensors have no memory.
        prefix: of all tensor names; None: found by the embedding's."""
        self._directory = directory
        scheme = QuantizationConfig.load(directory).activation_scheme
        self._static_inputs = scheme == "static"
        self._tensors = tensors(weight_files(directory))
        try:
            self._prefix = self._found_prefix() if prefix is None else prefix
        except BaseException:
            self._tensors.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, failed: object, *_: object) -> None:
        try:
            if failed is None:
                self._tensors.checks.done()
        finally:
            self.close()

    def close(self) -> None:
        """Close the files. A second call does nothing."""
        self._tensors.close()

    def __len__(self) -> int:
        """Return the number of tensors in the folder's files."""
        return len(self._tensors)

    def has(self, name: str) -> bool:
        return Companions(self._name_of(name), self._tensors).values() is not None

    def read(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Tensor:
        found = self.matrix(name, shape, dtype, part)
        return found.plain if found.kinds == {Kind.PLAIN} else found.dequantised(dtype)

    def matrix(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, part: Part = WHOLE
    ) -> Matrix:
        published = self.published(name, shape)
        return Matrix((published.segment(dtype, part, static_inputs=self._static_inputs),))

    def published(self, name: str, shape: tuple[int, ...]) -> PublishedMatrix:
        """Return the named matrix with its scales, as published. Raises WeightsError."""
        try:
            return PublishedMatrix(self._tensors, self._name_of(name), shape)
        except MissingWeight as error:
            raise WeightsError(f"{self._directory}: {error}") from error

    def stack(self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype) -> Matrix:
        # A check of the first one holds for all, because they are stored alike.
        self.matrix(names[0], shape, dtype)
        weights = [self._name_of(name) for name in names]
        found = StackedTensors.of(
            self._tensors, weights, lambda: self._error_of_one(names, shape, dtype)
        )
        if found is None:
            return stacked(self, names, shape, dtype)
        published = PublishedMatrix(found, weights[0], (len(names), *shape))
        return Matrix((published.segment(dtype, WHOLE, static_inputs=self._static_inputs),))

    def stored(self, name: str, shape: tuple[int, ...]) -> Tensor | None:
        found = self._name_of(name)
        if found not in self._tensors:
            return None
        if self._tensors.shape(found) != shape:
            raise WeightsError(
                f"{self._tensors.path(found)}: tensor {found} has shape "
                f"{list(self._tensors.shape(found))}, and config.json asks for {list(shape)}; "
                "fetch both from the same model"
            )
        return self._tensors.read(found)

    def _error_of_one(
        self, names: Sequence[str], shape: tuple[int, ...], dtype: torch.dtype
    ) -> WeightsError | None:
        """Read the matrices one by one, and return the first error; None if all are right."""
        try:
            for name in names:
                self.matrix(name, shape, dtype)
                self._tensors.checks.done()
        except WeightsError as error:
            return error
        return None

    def check_left_over(self, elsewhere: Elsewhere = nowhere_else, *, drafts: bool) -> None:
        """Raise WeightsError if read values are damaged, or no rank read a quantised tensor or
        scale. KV-cache scales are exempt. Call it last. elsewhere: true if another rank reads it.
        drafts: the draft layer was read too."""
        self._tensors.checks.done()
        check_left_over(self._tensors, self._prefix, elsewhere, drafts=drafts)

    def check_all_read(self) -> None:
        """Raise WeightsError if read values are damaged, or a stored tensor was not read. Call it
        last."""
        self._tensors.checks.done()
        for name in self._tensors.unread():
            raise WeightsError(
                f"{self._tensors.path(name)}: tensor {name} is read by nobody, so the files have "
                "another layout than their config.json: fetch both from the same model"
            )

    def check_kernels(self, device: torch.device) -> None:
        """Raise UnservedKind if the device has no kernels for the storage format of these
        weights."""
        if device.type == "cpu":
            return
        for name in self._tensors:
            dtype = self._tensors.dtype(name)
            if not is_of_text_model(name, self._prefix) or not is_coded(dtype):
                continue
            # Kernels of NVFP4 read its scales, and these are e4m3 too.
            if dtype in _SERVED and multiplies_fp8(device):
                continue
            raise UnservedKind(
                f"{self._tensors.path(name)}: tensor {name} is quantised ({dtype}), and there are "
                f"no kernels for that on {_named(device)}, which has them for "
                f"{' and '.join(_SERVED)} from compute capability 8.9 on; serve the checkpoint "
                "with --device cpu, or convert it to BF16"
            )

    def _found_prefix(self) -> str:
        for prefix in _OUTER:
            if Companions(f"{prefix}embed_tokens.weight", self._tensors).values() is not None:
                return prefix
        wanted = " or ".join(f"{prefix}embed_tokens.weight" for prefix in _OUTER)
        raise WeightsError(
            f"{self._directory}: tensor {wanted} is missing; are all files of the model here?"
        )

    def _name_of(self, name: str) -> str:
        if not name.startswith(("lm_head.", "mtp.")):
            return self._prefix + name
        outer = _OUTER[self._prefix] + name
        return outer if Companions(outer, self._tensors).values() is not None else name
