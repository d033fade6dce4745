"""The digest of rows by numpy: the naive reference of `tasuki.pycache._cpp_cache.RowDigester`."""

import numpy as np
from numpy.typing import NDArray

from tasuki.transfer.chunks.digest import ChunkRows, splitmix64_all, word_keys


def numpy_digest(memory: NDArray[np.uint8], rows: ChunkRows) -> int:
    """Return the digest. memory: uint8, whole words; the rows are inside it."""
    words = memory.view(np.uint64)
    sums = np.zeros(len(rows.offsets), dtype=np.uint64)
    for row, (offset, length) in enumerate(zip(rows.offsets, rows.lengths, strict=True)):
        sums[row] = np.dot(words[offset : offset + length], word_keys(int(length)))
    return int(splitmix64_all(rows.seeds.view(np.uint64) ^ sums).sum())
