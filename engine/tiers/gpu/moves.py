"""Copies between host memory and a GPU: streams, and many byte ranges by one call.

Owns nothing. Work joins the stream given by the caller, or the current one.
"""

import ctypes
from collections.abc import Callable

import numpy as np
import torch

from tasuki.engine.tiers.copy_job import Moves, run_moves
from tasuki.engine.tiers.segment_copies import StillMoving

LAST, FIRST = 0, -1
"""CUDA stream priorities. Work of a smaller one goes first."""


def stream_of(device: torch.device, priority: int) -> torch.cuda.Stream:
    """Make a CUDA stream for copies between a GPU's arena and the tiers below it."""
    return torch.cuda.Stream(device, priority=priority)  # type: ignore[no-untyped-call]


def recorded() -> torch.cuda.Event:
    """Record a CUDA event after all work in the current stream. A thread waiting for it sleeps."""
    event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def settle(stream: torch.cuda.Stream) -> None:
    """Wait until all copies in the stream have ended. Raises StillMoving if that fails."""
    try:
        with torch.cuda.stream(stream):
            recorded().synchronize()
    except Exception as error:
        raise StillMoving(f"a stream of copies cannot be waited for: {error}") from error


_LIBRARY = "libcudart.so.13"
"""The CUDA runtime with these arguments of cudaMemcpyBatchAsync. Earlier versions have one more."""
_IN_STREAM_ORDER = 1

RunMoves = Callable[[torch.Tensor, torch.Tensor, Moves], None]
"""A function with run_moves()'s parameters: source memory, target memory, byte ranges."""


class _Place(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("number", ctypes.c_int)]


class _Attributes(ctypes.Structure):
    _fields_ = [
        ("order", ctypes.c_int),
        ("source", _Place),
        ("target", _Place),
        ("flags", ctypes.c_uint),
    ]


def batched_moves() -> RunMoves:
    """Return a function to copy many byte ranges between host and GPU by one call of CUDA's
    runtime.

    A page is a block in every region. Pages without a neighbour need one copy for each block. A
    call for each copy takes longer than moving the bytes. The GPU's copy engines do the copies, not
    its multiprocessors.

    The copies join the current stream, never the default one. If the runtime lacks this call, the
    function makes one call for each copy.
    """
    try:
        call = ctypes.CDLL(_LIBRARY).cudaMemcpyBatchAsync
    except (OSError, AttributeError):
        return run_moves
    pointer, size = ctypes.c_void_p, ctypes.c_size_t
    call.argtypes = [pointer, pointer, pointer, size, pointer, pointer, size, pointer]
    call.restype = ctypes.c_int
    attributes = _Attributes(_IN_STREAM_ORDER, _Place(0, 0), _Place(0, 0), 0)
    first = size(0)

    def run(source: torch.Tensor, target: torch.Tensor, moves: Moves) -> None:
        count = moves.shape[1]
        froms = (moves[0] + source.data_ptr()).astype(np.uint64)
        tos = (moves[1] + target.data_ptr()).astype(np.uint64)
        lengths = moves[2].astype(np.uint64)
        error = call(
            tos.ctypes.data,
            froms.ctypes.data,
            lengths.ctypes.data,
            count,
            ctypes.addressof(attributes),
            ctypes.addressof(first),
            1,
            torch.cuda.current_stream().cuda_stream,
        )
        if error:
            raise RuntimeError(f"{count} copies failed with CUDA's error {error}")

    return run
