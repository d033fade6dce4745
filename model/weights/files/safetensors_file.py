"""One safetensors file: its header, read once, and its tensors as views of the file's own pages.

    8 bytes   length of the header, little endian
    header    JSON: name -> {"dtype", "shape", "data_offsets": [begin, end)}, and __metadata__
    data      of all tensors, to the end of the file

A view takes a microsecond or two, which is what a checkpoint of tens of thousands of small tensors
is read by; bytes come from the disk when they are first touched. A page that somebody writes to is
copied for them alone. One thread uses it.
"""

import json
import mmap
from collections.abc import Iterator
from math import prod
from operator import index
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from ..part import WHOLE, Part, WeightsError

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_LENGTH = 8
_MOST_HEADER = 100 * 2**20
"""As the reference implementation refuses."""


class _Entry(NamedTuple):
    """Of a tensor. A tuple of what is no container, which the garbage collector leaves alone."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """Stays mapped as long as a tensor of it lives. Raises WeightsError where it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error}); fetch it again") from error
        except ValueError as error:
            raise self._damaged(str(error)) from error
        length = int.from_bytes(mapped[:_LENGTH], "little")
        if len(mapped) < _LENGTH or length > min(len(mapped) - _LENGTH, _MOST_HEADER):
            raise self._damaged(f"its header of {length} bytes does not fit into it")
        self._mapped, self._begin = mapped, _LENGTH + length
        self._entries = self._read_header(mapped[_LENGTH : self._begin])

    def __iter__(self) -> Iterator[str]:
        """Names, in the order of the header."""
        return iter(self._entries)

    def dtype(self, name: str) -> str:
        """As safetensors names it, such as F8_E4M3."""
        return self._entries[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Dtype and shape."""
        return self._entries[name][:2]

    def held(self, name: str) -> Tensor:
        """Its bytes [n] uint8, a view of the file."""
        _, _, begin, end = self._entries[name]
        if begin == end:
            return torch.empty(0, dtype=torch.uint8)
        offset = self._begin + begin
        return torch.frombuffer(self._mapped, dtype=torch.uint8, count=end - begin, offset=offset)

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Contiguous; what is read whole is a view of the file."""
        found = self._entries[name]
        dtype = DTYPES.get(found.dtype)
        if dtype is None:
            raise WeightsError(
                f"{self.path}: tensor {name} has dtype {found.dtype}, which is not served; "
                "convert the checkpoint to BF16"
            )
        shape, begin, end = found.shape, self._begin + found.begin, self._begin + found.end
        if begin == end:
            return torch.empty(shape, dtype=dtype)[part]
        if begin % dtype.itemsize:
            held = bytearray(self._mapped[begin:end])
            tensor = torch.frombuffer(held, dtype=dtype).view(shape)
        else:
            count = (end - begin) // dtype.itemsize
            tensor = torch.frombuffer(self._mapped, dtype=dtype, count=count, offset=begin)
            tensor = tensor.view(shape)
        return tensor[part].contiguous() if part else tensor

    def _read_header(self, header: bytes) -> dict[str, _Entry]:
        size = len(self._mapped) - self._begin
        entries: dict[str, _Entry] = {}
        try:
            described = json.loads(header)
            described.pop("__metadata__", None)
            for name, of in described.items():
                begin, end = map(index, of["data_offsets"])
                entry = _Entry(str(of["dtype"]), tuple(map(index, of["shape"])), begin, end)
                self._check(name, entry, size)
                entries[name] = entry
        except WeightsError:
            raise
        except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
            raise self._damaged(f"its header cannot be read: {error!r}") from error
        return entries

    def _check(self, name: str, entry: _Entry, size: int) -> None:
        """size: of all data."""
        dtype, shape, begin, end = entry
        if not 0 <= begin <= end <= size or min(shape, default=0) < 0:
            raise self._damaged(f"tensor {name} ends at byte {end} of {size}")
        known = DTYPES.get(dtype)
        if known is not None and prod(shape) * known.itemsize != end - begin:
            raise self._damaged(
                f"tensor {name}, {dtype} of shape {list(shape)}, has {end - begin} bytes"
            )

    def _damaged(self, what: str) -> WeightsError:
        return WeightsError(f"{self.path}: is truncated or corrupt ({what}); fetch it again")
