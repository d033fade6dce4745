"""Encoder and decoder of one layer's units (blocks of KV, or states) in an arena in host or GPU
memory. Decoding is in place.

Owns views of the arena's bytes, shared and never copied whole. Knows layout and formats; no chunks,
transfers or peers. Thread rule: encode() and decode() may run in parallel on different units.
Invariant: the convolution's state is copied unchanged.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from tasuki.pycache.arena import torch_dtype

from .wire_layout import RowFormat, WireUnits

_SCRATCH_NUMBERS = 1 << 17
"""Most numbers decoded in one go: they fit a core's cache, and take well under a millisecond."""


class LayerCodec(Protocol):
    """Encoder and decoder of one layer's units. ids: page ids in a layer with pages, slot ids in a
    GDN layer. Both methods return only when the work is done."""

    def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
        """Encode the units with these ids into the arena from byte `offset` on, one after another.
        REQUIRES: units.encoded(layer); 16 divides offset."""

    def decode(self, layer: int, ids: Sequence[int]) -> None:
        """Decode the units with these ids in place: each from its encoded bytes to its whole size.
        REQUIRES: at most batch(layer) ids."""

    def batch(self, layer: int) -> int:
        """Return the number of the layer's units to decode in one go, for a small temporary buffer
        and a short time."""


class RowCodec:
    """Encoder and decoder of rows by PyTorch's operators, like RowFormat; a subclass may do the
    same faster."""

    def encode(self, form: RowFormat, values: torch.Tensor) -> torch.Tensor:
        return form.encode(values)

    def decode(self, form: RowFormat, encoded: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return form.decode(encoded, dtype)


class TorchLayerCodec:
    """Layer codec with PyTorch's operators for gathering and scattering units. On a GPU all work is
    queued on the current stream, and the caller waits for it."""

    def __init__(
        self,
        memory: torch.Tensor,
        units: WireUnits,
        rows: RowCodec | None = None,
        scratch_numbers: int = _SCRATCH_NUMBERS,
    ) -> None:
        layout = units.layout
        self._rows = rows or RowCodec()
        self._scratch_numbers = scratch_numbers
        self._units = units
        self._memory = memory
        self._blocks = memory.view(-1, layout.block_bytes)
        slabs = memory.numel() // layout.slab_bytes
        self._states = [
            memory.as_strided(
                (slabs, layout.state_layer_bytes),
                (layout.slab_bytes, 1),
                index * layout.state_layer_bytes,
            )
            for index in range(layout.gdn_layers)
        ]

    def batch(self, layer: int) -> int:
        form = self._format(layer)
        return max(1, self._scratch_numbers // (self._runs(layer) * form.rows * form.width))

    def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
        form, batch = self._format(layer), self.batch(layer)
        carried = self._carried(layer)
        length = carried + self._encoded(layer)
        whole = self._memory[offset : offset + len(ids) * length].view(len(ids), length)
        for start in range(0, len(ids), batch):
            rows, places = self._place(layer, ids[start : start + batch])
            held = rows.index_select(0, self._index(places))
            target = whole[start : start + batch]
            target[:, :carried].copy_(held[:, :carried])
            encoded = self._rows.encode(form, self._numbers(layer, held))
            target[:, carried:].copy_(encoded.view(len(held), -1))

    def decode(self, layer: int, ids: Sequence[int]) -> None:
        form, carried = self._format(layer), self._carried(layer)
        rows, places = self._place(layer, ids)
        # A copy, because the encoded bytes are read while the decoded ones are written over them.
        encoded = rows[:, carried : carried + self._encoded(layer)].index_select(
            0, self._index(places)
        )
        runs = encoded.view(-1, form.encoded_bytes)
        numbers = self._rows.decode(form, runs, self._dtype(layer)).reshape(len(ids), -1)
        held = numbers.view(torch.uint8)
        # One by one, because on a host scattering by an index moves single bytes.
        for place, unit in zip(places, held, strict=True):
            rows[place, carried : carried + len(unit)].copy_(unit)

    def _format(self, layer: int) -> RowFormat:
        units = self._units
        form = units.kv if self._full(layer) else units.state
        assert form is not None
        return form

    def _full(self, layer: int) -> bool:
        return self._units.layer_kinds[layer].keeps_pages

    def _runs(self, layer: int) -> int:
        """Return the number of separately encoded runs in one unit of the layer: its KV heads, or 1
        for a state."""
        return self._units.layout.kv_heads if self._full(layer) else 1

    def _encoded(self, layer: int) -> int:
        """Return the encoded bytes of one unit of the layer, without the bytes sent unchanged."""
        return self._runs(layer) * self._format(layer).encoded_bytes

    def _dtype(self, layer: int) -> torch.dtype:
        layout = self._units.layout
        return torch_dtype(layout.kv_dtype if self._full(layer) else layout.ssm_dtype)

    def _carried(self, layer: int) -> int:
        """Return the bytes at a unit's beginning sent unchanged: the convolution's state, or
        none."""
        return 0 if self._full(layer) else self._units.layout.conv_bytes

    def _place(self, layer: int, ids: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """Return the arena viewed as units of this layer, [n, bytes], and the index of each id's
        unit."""
        layout = self._units.layout
        kind = layout.kind_index(layer)
        if self._full(layer):
            return self._blocks, [page + kind * layout.pages_per_slab for page in ids]
        return self._states[kind], list(ids)

    def _index(self, places: list[int]) -> torch.Tensor:
        return torch.tensor(places, dtype=torch.int64, device=self._memory.device)

    def _numbers(self, layer: int, held: torch.Tensor) -> torch.Tensor:
        """Return the numbers to encode of gathered units. held: [n, bytes]. The result is [n *
        runs, rows, width]."""
        form, carried, dtype = self._format(layer), self._carried(layer), self._dtype(layer)
        length = self._runs(layer) * form.rows * form.width * dtype.itemsize
        numbers = held[:, carried : carried + length].contiguous().view(dtype)
        return numbers.view(-1, form.rows, form.width)
