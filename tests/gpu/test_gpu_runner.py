"""The stateful parts of a GPU step: rows, page tables, batch indices, ticks."""

import math

import numpy as np
import pytest
import torch

from tasuki.engine.config import EngineConfig
from tasuki.engine.runner.rows import SequencePages
from tasuki.model.forward import Batch, SequenceSlice
from tasuki.transfer.chunks.chunk import StepCounter
from tests.gpu.shapes import CONFIGS, parts_of
from tests.harness.waiting import until

DEVICE = torch.device("cuda")


def sequence(first: int, count: int) -> SequencePages:
    pages = SequencePages()
    pages.grow(np.arange(first, first + count, dtype=np.int32))
    return pages


def test_padded_sizes_reach_the_largest_and_waste_little() -> None:
    from tasuki.engine.runner.rows import padded_sizes

    for largest in (1, 2, 3, 5, 16, 60, 64, 100, 512):
        sizes = padded_sizes(largest)
        assert sizes == sorted(set(sizes)) and sizes[-1] == largest
        for rows in range(1, largest + 1):
            padded = min(size for size in sizes if size >= rows)
            assert padded <= max(1.5 * rows, rows + 3)


def test_rows_keep_their_seats_and_their_pages() -> None:
    from tasuki.engine.runner.device_batch import BlockTable

    table = BlockTable(4, 16, DEVICE)
    a, b, c, d = (sequence(100 * i, 3 + i) for i in range(4))

    def seated(*batch: SequencePages) -> list[SequencePages]:
        rows = [batch[number] for number in table.seat(batch)]
        for row, pages in enumerate(rows):
            assert table.table[row, : len(pages.ids)].tolist() == pages.ids.tolist()
        return rows

    assert seated(a, b, c) == [a, b, c]
    assert seated(c, b, a) == [a, b, c]
    assert seated(b, c) == [c, b]
    c.grow(np.array([7], dtype=np.int32))
    assert seated(d, b, c) == [c, b, d]
    assert seated(c, b, d) == [c, b, d]
    joined_anew = sequence(101, 4)
    assert seated(a, joined_anew, c, d) == [c, a, d, joined_anew]


@pytest.mark.parametrize("draft_layers", [0, 1])
@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_the_counter_ticks_once_a_layer_after_its_work(shape: str, draft_layers: int) -> None:
    from tasuki.engine.runner.cuda_runner import LayerEvents

    config = EngineConfig(dtype="bfloat16", device="cuda", arena_mib=128)
    parts = parts_of(shape, config, draft_layers)
    steps = StepCounter()
    layers = parts.model_config.layers + draft_layers
    ticks = LayerEvents(steps, layers)
    pages = [parts.layout.blocks_per_slab * (2 + page) for page in range(4)]
    batch = Batch.pack([SequenceSlice([5] * 200, 0, pages, 0, 1)])
    for forwards in (1, 2, 3):
        parts.model.forward(batch, parts.arena, ticks)
        assert ticks.launched == forwards * layers
        assert steps.wait_for(ticks.launched, 10.0)
        assert steps.value == ticks.launched
        until(lambda: steps.end_of(ticks.launched) < math.inf, "the forward's end is not told")
