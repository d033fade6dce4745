"""A decode forward as device tensors of fixed address: what a captured graph reads every time."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class DecodeBatch:
    """One token of each of B sequences, of which the first rows[0] count; all int32 on one device.

    positions [B]: of this token. context_lens [B]: positions + 1, what its query sees. page_table
    [B, pages]: by logical page, what is beyond a context is never read. read_slots, write_slots
    [B]: no row reads what another writes. rows [1]. Rows past rows[0] may hold anything: operators
    read and write nothing of the arena for them.
    """

    positions: Tensor
    context_lens: Tensor
    page_table: Tensor
    read_slots: Tensor
    write_slots: Tensor
    rows: Tensor

    @property
    def size(self) -> int:
        return self.positions.shape[0]
