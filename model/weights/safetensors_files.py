"""Tensors of safetensors files, as they are stored.

SafetensorsFile: one memory-mapped file. Its header is read once, and its tensors are views of the
mapped memory.

    8 bytes   length of the header, little endian
    header    JSON: name -> {"dtype", "shape", "data_offsets": [begin, end)}, and __metadata__
    data      of all tensors, to the end of the file

A view takes a microsecond or two. A checkpoint of tens of thousands of small tensors needs this
speed. Bytes are read from the disk at their first access. A write to a mapped page copies the page
for the writer alone. One thread uses it.

StoredTensors: the tensors of several files, their names, their types and their bytes. Each file is
opened once, and its header read. Its memory stays mapped until `close`, and as long as a view of it
exists. It does not know the meaning of a tensor. It records the tensors read, so that unread ones
can be found. One thread uses it.

PendingChecks: checks of the values read, many small tensors at a time. A checkpoint of experts has
tens of thousands of scales and codes. Checking one alone takes longer than reading it. So small
tensors wait and are checked together. If a check fails, they are checked one by one, and the wrong
one is named. Large tensors are checked immediately.
"""

import json
import mmap
import os
from collections.abc import Callable, Iterator, Sequence
from math import prod
from operator import index
from pathlib import Path
from typing import BinaryIO, NamedTuple

import torch
from torch import Tensor

from .matrix import WHOLE, Part, WeightsError

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
"""Largest size of a safetensors header in bytes. The reference implementation has the same
limit."""


class _Entry(NamedTuple):
    """One tensor's entry in a safetensors header. It is a tuple without containers, so the garbage
    collector does not track it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class SafetensorsFile:
    """One safetensors file. It stays memory-mapped as long as a tensor of it exists. Raises
    WeightsError if it is damaged."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with path.open("rb") as file:
                self._size = os.fstat(file.fileno()).st_size
                self._hold(file)
        except OSError as error:
            raise WeightsError(f"{path}: cannot be read ({error}); fetch it again") from error
        except ValueError as error:
            raise self._damaged(str(error)) from error
        length = int.from_bytes(self._bytes(0, min(_LENGTH, self._size)), "little")
        if self._size < _LENGTH or length > min(self._size - _LENGTH, _MOST_HEADER):
            raise self._damaged(f"its header of {length} bytes does not fit into it")
        self._begin = _LENGTH + length
        self._entries = self._read_header(self._bytes(_LENGTH, self._begin))

    def _hold(self, file: BinaryIO) -> None:
        """Keep the open file's bytes for later reads."""
        self._mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        self._size = len(self._mapped)

    def _bytes(self, begin: int, end: int) -> bytes:
        """Return bytes of the file. REQUIRES: begin <= end <= the file's size."""
        return self._mapped[begin:end]

    def __iter__(self) -> Iterator[str]:
        """Yield the tensor names, in the order of the file's header."""
        return iter(self._entries)

    def dtype(self, name: str) -> str:
        """Return a tensor's dtype by its safetensors name, such as F8_E4M3."""
        return self._entries[name].dtype

    def shape(self, name: str) -> tuple[int, ...]:
        return self._entries[name].shape

    def form(self, name: str) -> tuple[str, tuple[int, ...]]:
        """Return a tensor's dtype (safetensors name) and shape."""
        return self._entries[name][:2]

    def held(self, name: str) -> Tensor:
        """Return a tensor's bytes as [n] uint8, a view of the mapped file."""
        _, _, begin, end = self._entries[name]
        if begin == end:
            return torch.empty(0, dtype=torch.uint8)
        offset = self._begin + begin
        return torch.frombuffer(self._mapped, dtype=torch.uint8, count=end - begin, offset=offset)

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return a tensor, or a part of it, contiguous. A tensor read whole is a view of the mapped
        file, or a copy if misaligned there. Raises WeightsError for an unserved dtype."""
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
        size = self._size - self._begin
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
        """Raise WeightsError if the header entry of the tensor `name` is damaged. size: number of
        data bytes in the file."""
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


_SMALL_BYTES = 2**16
_MOST_BYTES = 2**24
_NAN = 0x7F
"""Bits of the one NaN of e4m3, without its sign."""

Error = Callable[[], WeightsError]
_Waiting = list[tuple[Tensor, Error]]


class PendingChecks:
    """Checks of tensor values, run for many small tensors together. Raises WeightsError for the
    first failing tensor, in done() at the latest."""

    def __init__(self) -> None:
        self._scales: _Waiting = []
        self._codes: _Waiting = []
        self._bytes = 0

    def finite(self, scales: Tensor, error: Error) -> None:
        """Add a check: the float32 scales must be finite and not negative. error: makes the error
        to raise otherwise."""
        self._add(self._scales, scales, error)

    def without_nan(self, codes: Tensor, error: Error) -> None:
        """Add a check: the e4m3 codes must have no NaN. error: makes the error to raise
        otherwise."""
        self._add(self._codes, codes, error)

    def done(self) -> None:
        """Run all waiting checks. Raises WeightsError for the first failing tensor."""
        scales, codes = self._scales, self._codes
        self._scales, self._codes, self._bytes = [], [], 0
        _check(scales, _are_finite)
        _check(codes, _are_numbers)

    def _add(self, waiting: _Waiting, tensor: Tensor, error: Error) -> None:
        if tensor.is_meta:
            return
        waiting.append((tensor, error))
        self._bytes += tensor.nbytes
        if tensor.nbytes > _SMALL_BYTES or self._bytes > _MOST_BYTES:
            self.done()


def _check(waiting: _Waiting, holds: Callable[[Sequence[Tensor]], bool]) -> None:
    if waiting and not holds([tensor for tensor, _ in waiting]):
        raise next(error() for tensor, error in waiting if not holds([tensor]))


def _are_finite(scales: Sequence[Tensor]) -> bool:
    joined = _joined(scales)
    return bool(((joined >= 0) & (joined < torch.inf)).all())


def _are_numbers(codes: Sequence[Tensor]) -> bool:
    joined = _joined([code.view(torch.uint8) for code in codes])
    # Take a part at a time, because a layer's experts are gigabytes.
    pieces = torch.split(joined, _MOST_BYTES)
    return all(not len(piece) or int((piece & _NAN).max()) != _NAN for piece in pieces)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


class StoredTensors:
    """The tensors of several safetensors files, by name. checks: pending checks of the values read.
    Raises WeightsError."""

    OPENS: type[SafetensorsFile] = SafetensorsFile

    def __init__(self, files: Sequence[Path]) -> None:
        self.checks = PendingChecks()
        self._files: dict[str, SafetensorsFile] = {}
        for path in files:
            file = self.OPENS(path)
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
        """Forbid later reads. A second call does nothing."""
        self._closed = True

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def path(self, name: str) -> Path:
        """Return the path of the file with the tensor. REQUIRES: the tensor exists."""
        return self._files[name].path

    def dtype(self, name: str) -> str:
        """Return the tensor's dtype by its safetensors name, such as F8_E4M3. REQUIRES: the tensor
        exists."""
        return self._files[name].dtype(name)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the tensor's shape. REQUIRES: the tensor exists."""
        return self._files[name].shape(name)

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Return the tensor, or a part of it, contiguous. A tensor read whole is a view of the
        mapped file. REQUIRES: the tensor exists."""
        self._check_open(name)
        self.took(name)
        return self._files[name].read(name, part)

    def _check_open(self, name: str) -> None:
        if self._closed:
            raise WeightsError(f"{self.path(name)}: is closed; open the folder again to read it")

    def are_alike(self, names: Sequence[str]) -> bool:
        """Return true if all named tensors have the same dtype and shape. REQUIRES: they exist."""
        first = self._files[names[0]].form(names[0])
        return all(self._files[name].form(name) == first for name in names)

    def read_stack(self, names: Sequence[str]) -> Tensor:
        """Return the named tensors stacked in a new first dimension, in new memory. REQUIRES: they
        have the same supported dtype and the same shape."""
        self._check_open(names[0])
        held = [self._files[name].held(name) for name in names]
        for name in names:
            self.took(name)
        dtype = DTYPES[self.dtype(names[0])]
        return torch.cat(held).view(dtype).view(len(names), *self.shape(names[0]))

    def took(self, name: str) -> None:
        """Mark the tensor as used, without reading it."""
        self._unread.pop(name, None)

    def unread(self) -> Iterator[str]:
        """Return the names of the tensors never read or marked as used, in file order."""
        return iter(self._unread)


class StoredShapes(StoredTensors):
    """The tensors' shapes and dtypes, read from the headers alone. A tensor from it has no memory
    (a meta tensor)."""

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        self.took(name)
        dtype = DTYPES.get(self.dtype(name), torch.uint8)
        return torch.empty(self.shape(name), dtype=dtype, device="meta")[part]

    def read_stack(self, names: Sequence[str]) -> Tensor:
        for name in names:
            self.took(name)
        dtype = DTYPES[self.dtype(names[0])]
        return torch.empty((len(names), *self.shape(names[0])), dtype=dtype, device="meta")
