"""Tensors of safetensors files in memory of their own.

A mapped tensor changes with its file, and a process that reads one beyond the end of a shortened
file is ended by the system (SIGBUS). A trainer may write to a folder at any time. So weights that
stay on a CPU, and those that are digested, are read into new memory here. A GPU has a copy anyway.
"""

import os
import weakref
from collections.abc import Iterator
from typing import BinaryIO

import torch
from torch import Tensor

from .matrix import WHOLE, Part, WeightsError
from .safetensors_files import DTYPES, SafetensorsFile, StoredTensors

_PIECE = 2**24
"""Bytes read from a file at a time."""


class CopiedFile(SafetensorsFile):
    """One safetensors file, with tensors in memory of their own. Raises WeightsError, also if the
    file becomes shorter."""

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        found = self._entries[name]
        if found.dtype not in DTYPES or found.begin == found.end:
            return super().read(name, part)
        tensor = self.held(name).view(DTYPES[found.dtype]).view(found.shape)
        return tensor[part].clone(memory_format=torch.contiguous_format) if part else tensor

    def held(self, name: str) -> Tensor:
        """Return a tensor's bytes as [n] uint8, in new memory."""
        _, _, begin, end = self._entries[name]
        found = torch.empty(end - begin, dtype=torch.uint8)
        filled = found.numpy().data
        for at in range(0, end - begin, _PIECE):
            self._fill(filled[at : at + _PIECE], self._begin + begin + at)
        return found

    def pieces(self, name: str) -> Iterator[memoryview]:
        """Yield a tensor's bytes in pieces. A piece is valid until the next."""
        _, _, begin, end = self._entries[name]
        piece = memoryview(bytearray(min(end - begin, _PIECE)))
        for at in range(begin, end, _PIECE):
            self._fill(piece[: end - at], self._begin + at)
            yield piece[: end - at]

    def _hold(self, file: BinaryIO) -> None:
        self._descriptor = os.dup(file.fileno())
        weakref.finalize(self, os.close, self._descriptor)

    def _bytes(self, begin: int, end: int) -> bytes:
        found = bytearray(end - begin)
        self._fill(memoryview(found), begin)
        return bytes(found)

    def _fill(self, piece: memoryview, begin: int) -> None:
        """Fill the piece with the file's bytes from `begin` on."""
        filled = 0
        while filled < len(piece):
            try:
                count = os.preadv(self._descriptor, [piece[filled:]], begin + filled)
            except OSError as error:
                raise WeightsError(
                    f"{self.path}: cannot be read ({error}); fetch it again"
                ) from error
            if not count:
                raise self._damaged(f"it ends at byte {begin + filled}")
            filled += count


class CopiedTensors(StoredTensors):
    """The tensors of several safetensors files, each read into memory of its own."""

    OPENS = CopiedFile


def kept_by(device: torch.device | str) -> type[StoredTensors]:
    """Return the class to read tensors with that stay on the device. A GPU copies mapped ones."""
    return CopiedTensors if torch.device(device).type == "cpu" else StoredTensors
