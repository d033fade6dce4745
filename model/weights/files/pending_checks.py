"""Checks of values that were read, many small tensors at a time.

A checkpoint of experts has tens of thousands of scales and codes, of which each alone would take
longer to check than to read. Small ones wait and are looked through as one; who finds something
wrong looks again, one by one, and names it. Large ones are checked at once.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..part import WeightsError

_SMALL_BYTES = 2**16
_MOST_BYTES = 2**24
_NAN = 0x7F
"""The one NaN of e4m3, but for its sign."""

Error = Callable[[], WeightsError]
_Waiting = list[tuple[Tensor, Error]]


class PendingChecks:
    """Raises WeightsError, of the first tensor that a check does not hold for, at the latest in
    done()."""

    def __init__(self) -> None:
        self._scales: _Waiting = []
        self._codes: _Waiting = []
        self._bytes = 0

    def finite(self, scales: Tensor, error: Error) -> None:
        """And not negative. scales: float32."""
        self._add(self._scales, scales, error)

    def without_nan(self, codes: Tensor, error: Error) -> None:
        """codes: e4m3."""
        self._add(self._codes, codes, error)

    def done(self) -> None:
        """All that were added hold."""
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
    # A piece at a time: a layer's experts are gigabytes.
    pieces = torch.split(joined, _MOST_BYTES)
    return all(not len(piece) or int((piece & _NAN).max()) != _NAN for piece in pieces)


def _joined(tensors: Sequence[Tensor]) -> Tensor:
    if len(tensors) == 1:
        return tensors[0].reshape(-1)
    return torch.cat([tensor.reshape(-1) for tensor in tensors])
