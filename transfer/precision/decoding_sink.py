"""Windows that arrive encoded: they land in the heads of the pages and states that they become, and
are decoded there.

Knows units; no rooms and no threads: the receiver calls it. Invariant: a part is small enough that
who has to wait for its end may.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tasuki.transfer.windows.window import WindowHeader

from .layer_codec import LayerCodec
from .wire_layout import WireUnits


@dataclass(frozen=True)
class EncodedPart:
    """ids: pages of a layer that keeps some, or the slot of a GDN layer."""

    layer: int
    ids: tuple[int, ...]


class WindowSink:
    def __init__(self, units: WireUnits, code: int, codec: LayerCodec) -> None:
        """code: of the precision, which every notification must carry."""
        self.code = code
        self._units = units
        self._codec = codec

    def parts(
        self, header: WindowHeader, pages: Sequence[int], slot: int | None
    ) -> Iterator[EncodedPart]:
        """What of the window is encoded; nothing twice."""
        for layer in range(header.first_layer, header.end_layer):
            if not self._units.encoded(layer):
                continue
            blocks = self._units.layer_kinds[layer].keeps_pages
            ids = tuple(pages) if blocks else () if slot is None else (slot,)
            at_once = self._codec.batch(layer)
            for start in range(0, len(ids), at_once):
                yield EncodedPart(layer, ids[start : start + at_once])

    def decode(self, part: EncodedPart) -> None:
        """From the heads of its units to the whole of them; done on return."""
        self._codec.decode(part.layer, part.ids)
