"""Lengths of what is sent, all that most of a sender needs to know of a layout."""

from typing import Protocol

from tasuki.pycache.layout import LayerKind


class UnitSizes(Protocol):
    """Bytes on the wire of a block and of the state of one GDN layer. CacheLayout is one, of a wire
    on which all travels as it lies."""

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def state_layer_bytes(self) -> int: ...
