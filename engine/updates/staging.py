"""Staging of new weights beside those in use: read, checked, and then copied into the same storage.

stage() runs on a thread of its own and changes nothing in use. commit() runs between two forwards,
and cannot fail half-way, because stage() has made every check. The tensors in use keep their
addresses, so their holders are not built again.

Checks, in this order: memory for a second set of weights; plain files; the config; names, shapes,
dtypes and layouts of all tensors; the vision tower; finite weights; finite logits of a short
forward. The weights are digested last. Staged weights are copies: later writes to the folder change
nothing of them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from tasuki.model.config import ModelConfig
from tasuki.model.forward import Batch, NullHooks, SequenceSlice
from tasuki.model.protocol import Model
from tasuki.model.weights.layers import Weights, tensors
from tasuki.model.weights.safetensors_folder import weight_files
from tasuki.model.weights.tensor_tree import WeightsDigests
from tasuki.pycache.arena import Arena
from tasuki.pycache.layout import PAGE_TOKENS, CacheLayout

_TRIAL_TOKENS = PAGE_TOKENS // 2
_TRIAL_SLABS = 4
_WIDE = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
"""Dtypes of plain weights, whose numbers may be NaN or infinite."""
GIB = 2**30


class UpdateRefused(ValueError):
    """New weights cannot take the place of those in use. The message names the reason and the
    fix."""


class Staged(Protocol):
    """Checked weights, ready for a commit."""

    @property
    def digests(self) -> WeightsDigests: ...

    def commit(self) -> None:
        """Put the weights in the place of those in use. REQUIRES: no forward is in flight."""


class Stager(Protocol):
    """Stager of an engine's weights, on one rank or several."""

    def stage(self, folder: str) -> Staged:
        """Read and check the folder's weights. Raises UpdateRefused, WeightsError,
        ModelConfigError."""


@dataclass(frozen=True)
class Staging:
    """`Stager` of one rank.

    model: the model in use; of one rank if there are several. config: the whole model's.
    read_config: returns the config of a folder, with the engine's settings. read_weights: returns
    its weights. build: returns a model over weights. digests: returns both digests of a folder.
    available: returns the bytes of unused memory. keeps_tower: returns True if a folder has the
    vision tower in use, or none at all. is_sound: returns True if a model's results are finite.
    """

    model: Model
    config: ModelConfig
    read_config: Callable[[str], ModelConfig]
    read_weights: Callable[[str], Weights]
    build: Callable[[Weights], Model]
    digests: Callable[[str], WeightsDigests]
    available: Callable[[], int]
    keeps_tower: Callable[[str], bool]
    is_sound: Callable[[Model], bool]

    @property
    def staged_bytes(self) -> int:
        """Return the bytes of a second set of weights."""
        return sum(tensor.nbytes for tensor in held(self.model))

    def stage(self, folder: str) -> "StagedWeights":
        """Read and check the folder's weights. Raises UpdateRefused, WeightsError,
        ModelConfigError."""
        needed, available = self.staged_bytes, self.available()
        if needed > available:
            raise UpdateRefused(
                f"new weights take {needed / GIB:.2f} GiB beside those in use, and "
                f"{available / GIB:.2f} GiB of memory are free: free memory, or restart the node "
                "with the new folder"
            )
        if not Path(folder).is_dir():
            raise UpdateRefused(f"{folder} is no folder of this machine: give a checkpoint folder")
        check_files(Path(folder))
        self._check_config(folder)
        before = written(folder)
        model = self.build(self.read_weights(folder))
        self._check_tensors(folder, model)
        if not self.keeps_tower(folder):
            raise UpdateRefused(f"{folder} has another vision tower: restart the node with it")
        if not self.is_sound(model):
            raise UpdateRefused(
                f"{folder}: its weights or their logits are NaN or infinite: check them, and the "
                "node's --dtype"
            )
        digests = self.digests(folder)
        if written(folder) != before:
            raise UpdateRefused(
                f"{folder} was written to while it was read: rename a complete folder into place"
            )
        return StagedWeights(digests, self.model, model)

    def _check_config(self, folder: str) -> None:
        theirs = self.read_config(folder)
        if theirs != self.config:
            raise UpdateRefused(
                f"{folder}/config.json describes another model, {theirs.constants}, than the one "
                f"in use, {self.config.constants}: restart the node with it"
            )

    def _check_tensors(self, folder: str, model: Model) -> None:
        ours, theirs = list(map(_form, held(self.model))), list(map(_form, held(model)))
        formats = self.model.weights.formats, model.weights.formats
        if ours != theirs or formats[0] != formats[1]:
            raise UpdateRefused(
                f"{folder} stores weights as {formats[1]}, and those in use are {formats[0]}, or a "
                "tensor has another dtype: convert the folder, or restart the node with it"
            )


def answers_soundly(model: Model, layout: CacheLayout) -> bool:
    """Return True if all weights are finite, and the logits of a short forward, which reads few
    experts and rows. layout: of the model's arena."""
    if not has_finite_weights(model):
        return False
    arena = Arena(layout, _TRIAL_SLABS)
    arena.bytes.zero_()
    tokens = [7919 * place % model.config.vocab for place in range(_TRIAL_TOKENS)]
    prompt = SequenceSlice(tokens, 0, [(_TRIAL_SLABS - 1) * layout.blocks_per_slab], 0, 1)
    logits = model.forward(Batch.pack([prompt]), arena, NullHooks())
    return bool(torch.isfinite(logits).all())


def has_finite_weights(model: Model) -> bool:
    """Return True if all weights in wide dtypes are finite. For one of several ranks, because a
    rank runs no forward alone."""
    wide = (tensor for tensor in held(model) if tensor.dtype in _WIDE)
    return all(bool(torch.isfinite(tensor).all()) for tensor in wide)


@dataclass(frozen=True)
class StagedWeights:
    """Checked weights of a model beside those in use. Implements Staged. in_use, staged: models
    over both."""

    digests: WeightsDigests
    in_use: Model
    staged: Model

    @torch.no_grad()
    def commit(self) -> None:
        """Copy the staged weights into the storage of those in use. REQUIRES: no forward is in
        flight."""
        for ours, theirs in zip(held(self.in_use), held(self.staged), strict=True):
            ours.copy_(theirs)


def held(model: Model) -> Iterator[Tensor]:
    """Yield the tensors of a model's weights, and of its rows of the head for drafts."""
    yield from tensors((model.weights, model.draft_rows))


def _form(tensor: Tensor) -> tuple[object, ...]:
    return tuple(tensor.shape), tensor.dtype, tensor.stride(), tensor.device


def check_files(folder: Path) -> None:
    """Raise UpdateRefused for a file that may have no end, such as a pipe or a device. A link to a
    plain file is accepted. Raises WeightsError."""
    for path in {*folder.glob("*.json"), *weight_files(folder)}:
        if path.exists() and not path.is_file():
            raise UpdateRefused(f"{path} is no plain file: give a checkpoint folder")


def written(folder: str) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of the folder's weight files. Raises WeightsError."""
    files = [(path, path.stat()) for path in weight_files(Path(folder)) if path.exists()]
    return [(path.name, status.st_size, status.st_mtime_ns) for path, status in files]
