"""Tensors of safetensors files as they are stored: which there are, of what type, and their bytes.

Each file is opened once, and its header read; its pages stay mapped until `close` and as long as a
view of them lives. Does not know what a tensor means. Counts what was asked for, so that what
nobody reads can be found. One thread uses it.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor

from ..part import WHOLE, Part, WeightsError
from .pending_checks import PendingChecks
from .safetensors_file import DTYPES, SafetensorsFile


class StoredTensors:
    """checks: of what was read, which is looked through many tensors at a time. Raises
    WeightsError."""

    def __init__(self, files: Sequence[Path]) -> None:
        self.checks = PendingChecks()
        self._files: dict[str, SafetensorsFile] = {}
        for path in files:
            file = SafetensorsFile(path)
            for name in file:
                if name in self._files:
                    raise WeightsError(
                        f"{path}: tensor {name} is in {self.path(name).name} too, and only one of "
                        "the two can be meant: move files that are not of the model out of the "
                        "folder"
                    )
                self._files[name] = file
        self._unread = dict.fromkeys(self._files)
        self._closed = False

    def close(self) -> None:
        """Nothing is read any more. Idempotent."""
        self._closed = True

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def path(self, name: str) -> Path:
        """Of the file that holds it. REQUIRES: it is there."""
        return self._files[name].path

    def dtype(self, name: str) -> str:
        """As safetensors names it, such as F8_E4M3. REQUIRES: it is there."""
        return self._files[name].dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """REQUIRES: it is there."""
        return self._files[name].shape(name)

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Contiguous. What was read whole keeps the pages of its own bytes. REQUIRES: it is
        there."""
        self._check_open(name)
        self.took(name)
        return self._files[name].read(name, part)

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise WeightsError(f"{self.path(name)}: is closed; open the folder again to read it")

    def are_alike(self, names: Sequence[str]) -> bool:
        """Whether they have one dtype and shape. REQUIRES: they are there."""
        first = self._files[names[0]].form(names[0])
        return all(self._files[name].form(name) == first for name in names)

    def read_stack(self, names: Sequence[str]) -> Tensor:
        """One below the other in a new first dimension, in new memory. REQUIRES: they are alike,
        and of a dtype that is served."""
        self._check_open(names[0])
        held = [self._files[name].held(name) for name in names]
        for name in names:
            self.took(name)
        dtype = DTYPES[self.dtype(names[0])]
        return torch.cat(held).view(dtype).view(len(names), *self.shape(names[0]))

    def took(self, name: str) -> None:
        """It is known, and needs no reading."""
        self._unread.pop(name, None)

    def unread(self) -> Iterator[str]:
        """Names that nobody asked for, in file order."""
        return iter(self._unread)


class StoredShapes(StoredTensors):
    """Of the headers alone: every tensor that is asked for, without memory behind it."""

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        self.took(name)
        dtype = DTYPES.get(self.dtype(name), torch.uint8)
        return torch.empty(self.shape(name), dtype=dtype, device="meta")[part]

    def read_stack(self, names: Sequence[str]) -> Tensor:
        for name in names:
            self.took(name)
        dtype = DTYPES[self.dtype(names[0])]
        return torch.empty((len(names), *self.shape(names[0])), dtype=dtype, device="meta")
