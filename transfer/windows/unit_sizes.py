"""Lengths of what is sent, all that most of a sender needs to know of a layout."""

from typing import Protocol

from tasuki.pycache.layout import LayerKind


class UnitSizes(Protocol):
    """Bytes on the wire of a block, of the state of one GDN layer and of what a draft layer carries
    over. CacheLayout is one, of a wire on which all travels as it lies."""

    @property
    def layer_kinds(self) -> tuple[LayerKind, ...]: ...

    @property
    def block_bytes(self) -> int: ...

    @property
    def state_layer_bytes(self) -> int: ...

    @property
    def carry_bytes(self) -> int: ...


def state_bytes(sizes: UnitSizes, layer: int) -> int:
    """Of a state, what travels of one layer; 0 where the layer keeps none."""
    match sizes.layer_kinds[layer]:
        case LayerKind.GDN:
            return sizes.state_layer_bytes
        case LayerKind.DRAFT:
            return sizes.carry_bytes
        case LayerKind.FULL:
            return 0
