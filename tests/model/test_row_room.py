"""Memory reused by reads of pages gives the same numbers as fresh memory and is no larger than
needed."""

import pytest
import torch

from tasuki.model.ops.attention.page_rows import read_pages
from tasuki.model.ops.row_room import _LOOKED_AFTER, Place, RowRoom
from tasuki.pycache.layout import PAGE_TOKENS

PAGES, HEADS, DIM = 9, 2, 4


def room_rows(room: RowRoom, count: int) -> torch.Tensor:
    return room.rows(Place.KEYS, count, 8, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("stored", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_reads_of_any_length_give_what_the_pages_hold(
    stored: torch.dtype, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    kv = torch.randn(PAGES, HEADS, 2, PAGE_TOKENS, DIM).to(stored)
    room = RowRoom()
    # Each is longer, shorter or in another order than the last, so leftover data would show.
    for pages in ([0], [8, 1, 5], [2], [7, 6, 5, 4, 3, 2, 1, 0], [3, 3]):
        chosen = kv[torch.tensor(pages)].to(dtype)
        for side, rows in enumerate(read_pages(kv, torch.tensor(pages), dtype, room)):
            expected = chosen[:, :, side].transpose(0, 1).reshape(HEADS, -1, DIM)
            assert rows.dtype == dtype and torch.equal(rows, expected)


def test_a_context_that_grows_page_by_page_moves_seldom() -> None:
    room = RowRoom()
    places = {room_rows(room, count).data_ptr() for count in range(100, 400)}
    assert len(places) < 12


def test_memory_of_one_long_context_is_given_back() -> None:
    room = RowRoom()
    room_rows(room, 100_000)
    most = room.bytes
    for _ in range(2 * _LOOKED_AFTER):
        room_rows(room, 100)
    assert room.bytes < most / 500
    assert room.bytes >= room_rows(room, 100).nbytes


def test_rows_are_written_with_and_without_gradients() -> None:
    room = RowRoom()
    with torch.inference_mode():
        room_rows(room, 4).fill_(1.0)
    assert room_rows(room, 4).fill_(2.0).sum() == 64.0
