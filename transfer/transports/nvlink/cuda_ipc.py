"""GPU memory shared across processes by CUDA IPC, and the gate to stop writers.

Thread rule: any thread. Reads and writes of single words block for microseconds and wait for no
other stream.
"""

import ctypes
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tasuki.transfer.errors import TransportError

HANDLE_BYTES = 64
_OFFSET_BYTES = 8
_LAZY_PEER_ACCESS = 1
_NON_BLOCKING = 1
WORD_BYTES = 8


class _Handle(ctypes.Structure):
    _fields_ = [("reserved", ctypes.c_char * HANDLE_BYTES)]


@dataclass(frozen=True)
class Export:
    """Handle of memory shared with other processes. handle: CUDA's handle of a whole allocation.
    offset: byte offset of the shared memory in it."""

    handle: bytes
    offset: int

    def packed(self) -> bytes:
        """Return the handle and offset as bytes, of a fixed length."""
        return self.handle + self.offset.to_bytes(_OFFSET_BYTES, "little")

    @staticmethod
    def unpacked(packed: bytes) -> "tuple[Export, bytes]":
        """Return the export at the beginning of `packed`, and the bytes behind it. REQUIRES: the
        beginning is from packed() on this host."""
        handle, rest = packed[:HANDLE_BYTES], packed[HANDLE_BYTES:]
        offset = int.from_bytes(rest[:_OFFSET_BYTES], "little")
        return Export(handle, offset), rest[_OFFSET_BYTES:]


class CudaIpc:
    """One GPU's memory shared across processes: CUDA's own IPC handles, through the driver.

    It does not use torch's handles: they free, cache and reference-count, but an importer's death
    must cost the exporter nothing. Owns the device's primary context, a stream for single words,
    and its allocations. Thread rule: any thread; reads and writes of single words block for
    microseconds and wait for no other stream. Invariant: memory exported by a peer is written by no
    kernel of this process once it is closed. device: the GPU's index in this process, as torch
    counts.
    """

    def __init__(self, device: int) -> None:
        """device: index of the GPU. Raises TransportError if there is no such GPU."""
        try:
            self._driver: Any = ctypes.CDLL("libcuda.so.1")
        except OSError as error:
            raise TransportError(f"no CUDA driver is installed here: {error}") from error
        self._context = ctypes.c_void_p()
        self._device = ctypes.c_int()
        self._stream = ctypes.c_void_p()
        self._call("cuInit", ctypes.c_uint(0))
        self._call("cuDeviceGet", ctypes.byref(self._device), ctypes.c_int(device))
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), self._device)
        with self._current():
            # Not the default stream, because work there would wait for the forward's kernels.
            self._call("cuStreamCreate", ctypes.byref(self._stream), ctypes.c_uint(_NON_BLOCKING))

    def export(self, address: int) -> Export:
        """Return a handle of the allocation containing `address`, for mapping by another process.

        Raises TransportError for memory not from cudaMalloc.
        """
        base, size = ctypes.c_uint64(), ctypes.c_size_t()
        handle = _Handle()
        with self._current():
            self._call(
                "cuMemGetAddressRange_v2",
                ctypes.byref(base),
                ctypes.byref(size),
                ctypes.c_uint64(address),
            )
            try:
                self._call("cuIpcGetMemHandle", ctypes.byref(handle), base)
            except TransportError as error:
                raise TransportError(
                    f"the arena cannot be shared: {error}; it must be plain cudaMalloc memory: "
                    "leave PYTORCH_CUDA_ALLOC_CONF without expandable_segments"
                ) from error
        return Export(bytes(handle), address - base.value)

    def open(self, export: Export, size: int) -> int:
        """Map a peer's exported memory of `size` bytes; return its address in this process.

        Raises TransportError, also if the allocation is smaller: a kernel writing behind its end
        would destroy this process's context.
        """
        if len(export.handle) != HANDLE_BYTES:
            raise TransportError(
                f"an IPC handle has {HANDLE_BYTES} bytes, not {len(export.handle)}"
            )
        base = ctypes.c_uint64()
        with self._current():
            self._call(
                "cuIpcOpenMemHandle_v2",
                ctypes.byref(base),
                _Handle.from_buffer_copy(export.handle),
                ctypes.c_uint(_LAZY_PEER_ACCESS),
            )
        mapped = ctypes.c_size_t()
        with self._current():
            self._call("cuMemGetAddressRange_v2", None, ctypes.byref(mapped), base)
        if export.offset + size > mapped.value:
            self.close(export, base.value + export.offset)
            raise TransportError(
                f"the peer exported {size} bytes at {export.offset} of {mapped.value}"
            )
        return base.value + export.offset

    def close(self, export: Export, address: int) -> None:
        """Unmap the memory mapped by open() at `address`. REQUIRES: no kernel writes to it."""
        with self._current():
            self._call("cuIpcCloseMemHandle", ctypes.c_uint64(address - export.offset))

    def allocate(self, size: int) -> int:
        """Allocate `size` bytes of GPU memory in an allocation of its own; return the address.
        Raises TransportError."""
        address = ctypes.c_uint64()
        with self._current():
            self._call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address.value

    def clear(self, address: int, size: int) -> None:
        """Write `size` bytes of zeros at `address`."""
        with self._current():
            self._call(
                "cuMemsetD8Async",
                ctypes.c_uint64(address),
                ctypes.c_ubyte(0),
                ctypes.c_size_t(size),
                self._stream,
            )
            self._call("cuStreamSynchronize", self._stream)

    def free(self, address: int) -> None:
        with self._current():
            self._call("cuMemFree_v2", ctypes.c_uint64(address))

    def read_word(self, address: int) -> int:
        """Return the int64 at `address`, in this process's or a peer's memory."""
        word = ctypes.c_int64()
        with self._current():
            self._call(
                "cuMemcpyDtoHAsync_v2",
                ctypes.byref(word),
                ctypes.c_uint64(address),
                ctypes.c_size_t(WORD_BYTES),
                self._stream,
            )
            self._call("cuStreamSynchronize", self._stream)
        return word.value

    def write_word(self, address: int, value: int) -> None:
        """Write `value` as the int64 at `address`. Every later read by a kernel returns it."""
        word = ctypes.c_int64(value)
        with self._current():
            self._call(
                "cuMemcpyHtoDAsync_v2",
                ctypes.c_uint64(address),
                ctypes.byref(word),
                ctypes.c_size_t(WORD_BYTES),
                self._stream,
            )
            self._call("cuStreamSynchronize", self._stream)

    @contextmanager
    def _current(self) -> Iterator[None]:
        """Make the device's context current inside `with`; a thread has none of its own."""
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            yield
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p()))

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(self._driver, function)(*arguments)
        if code:
            text = ctypes.c_char_p()
            self._driver.cuGetErrorName(code, ctypes.byref(text))
            name = text.value.decode() if text.value else str(code)
            raise TransportError(f"{function}: {name}")


# A separate allocation, because the driver shares blocks of this size between smaller ones.
_ALLOCATION_BYTES = 2 << 20
# As an argument of a kernel it must never fit 32 bits, or the kernel would be compiled anew.
NOBODY = 1 << 40
"""Permission value never equal to any gate's word, so a kernel with it writes nothing."""


class PeerGate:
    """Gate of an arena mapped by other processes: a word in GPU memory, permitting or stopping
    their writes.

    CUDA cannot take a mapping back from a live process, so writers check the gate. Their kernels
    read the word first, and write only if it still equals the value read at connect, their
    permission. Owns the word. Thread rule: any thread. Invariants: a permission ended by shut() is
    never valid again. A kernel reads the word's value when it runs, not at its launch.
    """

    def __init__(self, ipc: CudaIpc) -> None:
        self._ipc = ipc
        self.address = ipc.allocate(_ALLOCATION_BYTES)
        self.shut()

    @property
    def export(self) -> Export:
        return self._ipc.export(self.address)

    def shut(self) -> None:
        """Shut the gate by a new word: kernels beginning from now on with an older permission write
        nothing."""
        self._ipc.write_word(self.address, NOBODY + 1 + secrets.randbits(60))

    def close(self) -> None:
        """Free the gate's memory. REQUIRES: called once. The memory stays mapped in peers until
        they unmap it."""
        self._ipc.free(self.address)
