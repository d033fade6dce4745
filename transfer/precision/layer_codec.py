"""Encoder and decoder of one layer's units (blocks or states) in an arena in host or GPU memory.
Decoding is in place.

Owns views of the arena's bytes, shared and never copied whole. Knows layout and formats; no chunks,
transfers or peers. Thread rule: encode() and decode() may run in parallel on different units.
Invariant: parts without a row format are copied unchanged.
"""

from collections.abc import Sequence
from typing import Protocol

import torch

from tasuki.pycache.arena import torch_dtype

from .wire_layout import Piece, RowFormat, UnitForm, WireUnits

_SCRATCH_NUMBERS = 1 << 17
"""Most numbers decoded in one go: they fit a core's cache, and take well under a millisecond."""


class LayerCodec(Protocol):
    """Encoder and decoder of one layer's units. ids: page ids in a layer with pages, else slot ids.
    Both methods return only when the work is done."""

    def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
        """Encode the units with these ids into the arena from byte `offset` on, one after another.
        REQUIRES: units.form(layer) is not None; 16 divides offset."""

    def decode(self, layer: int, ids: Sequence[int]) -> None:
        """Decode the units with these ids in place: each from its encoded bytes to its whole size.
        REQUIRES: at most batch(layer) ids."""

    def batch(self, layer: int) -> int:
        """Return the number of units to decode in one go, for a small buffer and a short time."""


class RowCodec:
    """Encoder and decoder of rows by PyTorch's operators; a subclass may do it faster."""

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
        self._rows = rows or RowCodec()
        self._scratch_numbers = scratch_numbers
        self._units = units
        self._memory = memory

    def batch(self, layer: int) -> int:
        return max(1, self._scratch_numbers // self._form(layer).numbers)

    def encode(self, layer: int, ids: Sequence[int], offset: int) -> None:
        form, batch = self._form(layer), self.batch(layer)
        length = form.runs * form.sent
        whole = self._memory[offset : offset + len(ids) * length].view(len(ids), length)
        for start in range(0, len(ids), batch):
            units, places = self._place(layer, ids[start : start + batch])
            found = units.index_select(0, self._index(places))
            runs = found[:, : form.runs * form.held].reshape(-1, form.held)
            target = whole[start : start + batch].view(-1, form.sent)
            at = to = 0
            for piece in form.pieces:
                encoded = self._encoded(piece, runs[:, at : at + piece.held])
                target[:, to : to + piece.sent].copy_(encoded)
                at, to = at + piece.held, to + piece.sent

    def decode(self, layer: int, ids: Sequence[int]) -> None:
        form = self._form(layer)
        units, places = self._place(layer, ids)
        # A copy, because the encoded bytes are read while the decoded ones are written over them.
        found = units[:, : form.runs * form.sent].index_select(0, self._index(places))
        held: list[torch.Tensor] = []
        runs, begin, at = found.view(-1, form.sent), 0, 0
        for piece in form.pieces:
            if held or piece.form is not None or form.runs > 1:
                held.append(self._decoded(piece, runs[:, at : at + piece.sent]))
            else:
                begin += piece.held  # In its place already.
            at += piece.sent
        whole = held[0] if len(held) == 1 else torch.cat(held, dim=1)
        # One by one, because on a host scattering by an index moves single bytes.
        for place, unit in zip(places, whole.view(len(ids), -1), strict=True):
            units[place, begin : begin + len(unit)].copy_(unit)

    def _form(self, layer: int) -> UnitForm:
        form = self._units.form(layer)
        assert form is not None
        return form

    def _encoded(self, piece: Piece, held: torch.Tensor) -> torch.Tensor:
        """Return the bytes to send, [runs, piece.sent]. held: [runs, piece.held] of the arena."""
        form = piece.form
        if form is None:
            return held
        dtype = torch_dtype(piece.part.dtype)
        length = form.rows * form.width * dtype.itemsize
        numbers = held[:, :length].contiguous().view(dtype).view(-1, form.rows, form.width)
        return self._rows.encode(form, numbers)

    def _decoded(self, piece: Piece, sent: torch.Tensor) -> torch.Tensor:
        """Return the bytes of the arena, [runs, piece.held], with zeros as padding. sent: [runs,
        piece.sent]."""
        if piece.form is None:
            return sent
        dtype = torch_dtype(piece.part.dtype)
        numbers = self._rows.decode(piece.form, sent.contiguous(), dtype)
        held = numbers.reshape(len(sent), -1).view(torch.uint8)
        padding = piece.held - held.shape[1]
        return torch.nn.functional.pad(held, (0, padding)) if padding else held

    def _place(self, layer: int, ids: Sequence[int]) -> tuple[torch.Tensor, list[int]]:
        """Return the arena as units of this layer, [n, bytes], and the index of each id's unit."""
        layout = self._units.layout
        if layout.layers[layer].page:
            first = layout.page_span(layer, 0).offset // layout.block_bytes
            return self._memory.view(-1, layout.block_bytes), [page + first for page in ids]
        span, slabs = layout.state_span(layer, 0), self._memory.numel() // layout.slab_bytes
        shape, strides = (slabs, span.length), (layout.slab_bytes, 1)
        begin = self._memory.storage_offset() + span.offset
        return self._memory.as_strided(shape, strides, begin), list(ids)

    def _index(self, places: list[int]) -> torch.Tensor:
        return torch.tensor(places, dtype=torch.int64, device=self._memory.device)
