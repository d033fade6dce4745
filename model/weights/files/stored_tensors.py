"""Tensors of safetensors files as they are stored: which there are, of what type, and their bytes.

Owns open files. Each is opened once and stays open until `close`; opening reads headers only. Does
not know what a tensor means. Counts what was asked for, so that what nobody reads can be found. One
thread uses it.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..part import WHOLE, Part, WeightsError


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what a damaged or absent file raises into WeightsError."""
    try:
        yield
    except OSError as error:
        raise WeightsError(f"{path}: cannot be read ({error}); fetch it again") from error
    except SafetensorError as error:
        raise WeightsError(f"{path}: is truncated or corrupt ({error}); fetch it again") from error


class StoredTensors:
    """Raises WeightsError."""

    def __init__(self, files: Sequence[Path]) -> None:
        self._files: dict[str, tuple[Path, Any]] = {}
        self._headers: dict[str, tuple[str, tuple[int, ...]]] = {}
        with ExitStack() as opened:
            for path in files:
                with reading(path):
                    file = opened.enter_context(safe_open(path, framework="pt"))
                    self._files.update(dict.fromkeys(file.keys(), (path, file)))
            self._unread = dict.fromkeys(self._files)
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Idempotent."""
        self._opened.close()

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)

    def path(self, name: str) -> Path:
        """Of the file that holds it. REQUIRES: it is there."""
        return self._files[name][0]

    def dtype(self, name: str) -> str:
        """As safetensors names it, such as F8_E4M3. REQUIRES: it is there."""
        return self._header(name)[0]

    def shape(self, name: str) -> tuple[int, ...]:
        """REQUIRES: it is there."""
        return self._header(name)[1]

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        """Contiguous. What was read whole keeps the pages of its own bytes. REQUIRES: it is
        there."""
        path, file = self._files[name]
        self.took(name)
        with reading(path):
            tensor: Tensor = file.get_slice(name)[part] if part else file.get_tensor(name)
        return tensor.contiguous()

    def took(self, name: str) -> None:
        """It is known, and needs no reading."""
        self._unread.pop(name, None)

    def _header(self, name: str) -> tuple[str, tuple[int, ...]]:
        found = self._headers.get(name)
        if found is None:
            path, file = self._files[name]
            with reading(path):
                piece = file.get_slice(name)
                found = str(piece.get_dtype()), tuple(piece.get_shape())
            self._headers[name] = found
        return found

    def unread(self) -> Iterator[str]:
        """Names that nobody asked for, in file order."""
        return iter(self._unread)


class StoredShapes(StoredTensors):
    """Of the headers alone: every tensor that is asked for, without memory behind it."""

    def read(self, name: str, part: Part = WHOLE) -> Tensor:
        self.took(name)
        dtype = _DTYPES.get(self.dtype(name), torch.uint8)
        return torch.empty(self.shape(name), dtype=dtype, device="meta")[part]


_DTYPES = {
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
    "F8_E4M3": torch.float8_e4m3fn,
}
