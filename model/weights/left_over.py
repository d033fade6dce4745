"""What of a checkpoint nobody has read: a scale or a coded tensor among it is an error, since the
weight that it belongs to was then read as something that it is not.

Plain tensors may be left over, as before: the vision tower, a draft layer that is not
served, buffers.
"""

import logging
import re
from collections.abc import Callable

from .matrix import WeightsError
from .published_matrix import is_coded
from .safetensors_files import StoredTensors

log = logging.getLogger(__name__)

_CODED = re.compile(r"scale|zero_point|qzeros|qweight|packed|g_idx|bitmask|absmax|weight_shape")
_OF_CACHE = re.compile(r"(^|[._])([qkv]|kv|attn|prob|output)_scale$")
"""Scales of keys, values and queries: the cache is kept in the model's own dtype."""
_OF_LAYER = re.compile(r"(^|\.)(language_model|model)\.layers\.\d+\.")
"""Of a text model's layer, under whatever prefix: one that is not this checkpoint's is read by
nobody."""


Elsewhere = Callable[[str], bool]
"""Whether another rank reads the tensor of that name."""


def nowhere_else(name: str) -> bool:
    """Return that no other rank reads the tensor: there is one rank."""
    return False


def check_left_over(
    tensors: StoredTensors,
    prefix: str,
    elsewhere: Elsewhere = nowhere_else,
    *,
    drafts: bool,
) -> None:
    """prefix: of the text model's names. elsewhere: whether another rank reads it. drafts: the
    draft layer was read too. Call it after everything was read. Raises WeightsError."""
    of_cache = 0
    for name in tensors.unread():
        if elsewhere(name) or not (
            is_of_text_model(name, prefix)
            or _OF_LAYER.search(name)
            or (drafts and is_of_draft_layer(name))
        ):
            continue
        leaf = name.rpartition(".")[2]
        if _OF_CACHE.search(leaf):
            of_cache += 1
        elif _CODED.search(leaf) or is_coded(tensors.dtype(name)):
            raise WeightsError(
                f"{tensors.path(name)}: tensor {name} ({tensors.dtype(name)}) is read by nobody; "
                f"beside it {_beside(tensors, name)}: fetch config.json and all shards from the "
                "same model, or convert the checkpoint to BF16"
            )
    if of_cache:
        log.info(
            "%d scales of a quantised KV cache are not used: it has the model's dtype", of_cache
        )


def is_of_text_model(name: str, prefix: str) -> bool:
    """Not of the vision tower and not of a draft layer, which is not always read."""
    if name.startswith(("lm_head.", "language_model.lm_head.")):
        return True
    inner = name.removeprefix(prefix)
    return inner != name and not inner.startswith(("visual.", "vision", "mtp.", "language_model."))


def is_of_draft_layer(name: str) -> bool:
    return name.startswith(("mtp.", "language_model.mtp."))


def _beside(tensors: StoredTensors, name: str) -> str:
    """Of the same module, in words."""
    module = name.rpartition(".")[0]
    near = [f"{other} ({tensors.dtype(other)})" for other in tensors if _is_near(other, name)]
    return f"are {', '.join(near[:4])}" if near else f"{module} holds nothing"


def _is_near(other: str, name: str) -> bool:
    module, leaf = name.rpartition(".")[::2]
    if other == name or other.rpartition(".")[0] != module:
        return False
    # Fused experts are tensors of one module, distinct by how their names begin.
    beside = other.rpartition(".")[2]
    return beside.startswith("weight") or leaf.startswith(beside)
