"""Digest of weights by their tensors, independent of the files that store them.

    leaf    SHA-256(name, dtype, shape, bytes) of a tensor as stored
    root    SHA-256("tasuki weights v1", then the leaves in order of the tensors' names)

Two sets of tensors have equal roots only if all names, dtypes, shapes and bytes are equal. A root
needs only the leaves, so a reader with older leaves reads only the changed tensors. Pure except for
reading the files.
"""

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from .copied_files import CopiedFile
from .safetensors_folder import weight_files

_DOMAIN = b"tasuki weights v1"
_DIGESTED_AT_ONCE = 8


@dataclass(frozen=True)
class WeightsDigests:
    """Digests (hex SHA-256) of one set of weights. files: weights_digest() of their folder.
    tensors: tensors_digest(), equal for the same tensors in other files."""

    files: str
    tensors: str


NO_DIGESTS = WeightsDigests("", "")
"""Digests in the staged weights of a follower: the leader has the real ones."""


def tensors_digest(directory: Path | str) -> str:
    """Return the root (hex) of the folder's tensors, those of draft layer and vision tower too.
    Every byte is read. Raises WeightsError."""
    leaves: dict[str, bytes] = {}
    with ThreadPoolExecutor(_DIGESTED_AT_ONCE) as threads:
        for path in weight_files(Path(directory)):
            file = CopiedFile(path)
            names = list(file)
            leaves.update(zip(names, threads.map(partial(_leaf, file), names), strict=True))
    return root_of(leaves)


def root_of(leaves: Mapping[str, bytes]) -> str:
    """Return the root (hex) of leaves by their tensors' names."""
    total = hashlib.sha256(_DOMAIN)
    for name in sorted(leaves):
        total.update(leaves[name])
    return total.hexdigest()


def _leaf(file: CopiedFile, name: str) -> bytes:
    dtype, shape = file.form(name)
    header = json.dumps([name, dtype, list(shape)]).encode()
    total = hashlib.sha256(len(header).to_bytes(8, "big") + header)
    for piece in file.pieces(name):
        total.update(piece)
    return total.digest()
