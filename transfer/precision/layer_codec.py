"""Codec for units of one layer: encodes them out of an arena and decodes them in place, in host or
GPU memory.

Owns views of the arena's bytes, shared and never copied whole. Knows layout and formats; no chunks,
rooms or peers. Thread rule: encode() and decode() may run in parallel on different units.
Invariant: conv state is copied unchanged.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from tasuki.pycache.arena import torch_dtype

from .wire_layout import RowFormat, WireUnits

_SCRATCH_NUMBERS = 1 << 17
"""Numbers decoded at a time: they fit a core's cache, and take well under a millisecond."""


class LayerCodec(Protocol):
    """ids: pages in a layer with pages, slots in a GDN layer. Both methods are done on return."""

    def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
        """Encode units to `offset` of the arena, one after another. REQUIRES: units.encoded(layer);
        16 divides offset."""

    def decode(self, layer: int, ids: Sequence[int]) -> None:
        """Decode each unit from its beginning to its whole size. REQUIRES: at most batch(layer)
        units."""

    def batch(self, layer: int) -> int:
        """Return the number of units to decode at a time, for a small scratch and a short time."""


class RowCodec:
    """Codec of rows by PyTorch's operators, as in RowFormat; a subclass may do the same faster."""

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
        """Return the number of separately encoded runs of a unit: its heads, or one for a state."""
        return self._units.layout.kv_heads if self._full(layer) else 1

    def _encoded(self, layer: int) -> int:
        """Return the bytes of a unit's rows on the wire."""
        return self._runs(layer) * self._format(layer).encoded_bytes

    def _dtype(self, layer: int) -> torch.dtype:
        layout = self._units.layout
        return torch_dtype(layout.kv_dtype if self._full(layer) else layout.ssm_dtype)

    def _carried(self, layer: int) -> int:
        """Return the bytes before the rows, sent unchanged."""
        return 0 if self._full(layer) else self._units.layout.conv_bytes

    def _place(self, layer: int, ids: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """Return (units of the arena [n, bytes], indices of the ids among them)."""
        layout = self._units.layout
        kind = layout.kind_index(layer)
        if self._full(layer):
            return self._blocks, [page + kind * layout.pages_per_slab for page in ids]
        return self._states[kind], list(ids)

    def _index(self, places: list[int]) -> torch.Tensor:
        return torch.tensor(places, dtype=torch.int64, device=self._memory.device)

    def _numbers(self, layer: int, held: torch.Tensor) -> torch.Tensor:
        """Return the rows of gathered units [n, bytes], as numbers [n runs, rows, width]."""
        form, carried, dtype = self._format(layer), self._carried(layer), self._dtype(layer)
        length = self._runs(layer) * form.rows * form.width * dtype.itemsize
        numbers = held[:, carried : carried + length].contiguous().view(dtype)
        return numbers.view(-1, form.rows, form.width)
