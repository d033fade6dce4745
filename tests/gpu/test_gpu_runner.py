"""The parts of a GPU step that hold state between steps: rows, page tables, lanes, ticks."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tasuki.engine.config import EngineConfig
from tasuki.model.batch import Batch, SequenceSlice
from tasuki.transfer.windows.step_counter import StepCounter

from tests.gpu.shapes import CONFIGS, parts_of
from tests.harness.daemons import until

DEVICE = torch.device("cuda")


def leases(count: int) -> list[Any]:
    return [
        SimpleNamespace(pages=np.arange(100 * i, 100 * i + 3 + i, dtype=np.int32))
        for i in range(count)
    ]


def work_of(leases: list[Any]) -> list[Any]:
    return [SimpleNamespace(active=SimpleNamespace(lease=lease)) for lease in leases]


def test_padded_sizes_reach_the_largest_and_waste_little() -> None:
    from tasuki.engine.runner.cuda_graphs import padded_sizes

    for largest in (1, 2, 3, 5, 16, 60, 64, 100, 512):
        sizes = padded_sizes(largest)
        assert sizes == sorted(set(sizes)) and sizes[-1] == largest
        for rows in range(1, largest + 1):
            padded = min(size for size in sizes if size >= rows)
            assert padded <= max(1.5 * rows, rows + 3)


def test_rows_keep_their_seats_and_their_pages() -> None:
    from tasuki.engine.runner.block_table import PageTable

    table = PageTable(4, 16, DEVICE)
    a, b, c, d = leases(4)

    def seated(*batch: Any) -> list[Any]:
        rows = [item.active.lease for item in table.seat(work_of(list(batch)))]
        for row, lease in enumerate(rows):
            assert table.table[row, : len(lease.pages)].tolist() == lease.pages.tolist()
        return rows

    assert seated(a, b, c) == [a, b, c]
    assert seated(c, b, a) == [a, b, c]
    assert seated(b, c) == [c, b]
    c.pages = np.append(c.pages, np.int32(7))
    assert seated(d, b, c) == [c, b, d]
    b.pages = b.pages + np.int32(1)
    assert seated(a, b, c, d) == [c, b, d, a]


@pytest.mark.parametrize("shape", sorted(CONFIGS))
def test_the_counter_ticks_once_a_layer_after_its_work(shape: str) -> None:
    from tasuki.engine.runner.layer_events import EventTicks

    parts = parts_of(shape, EngineConfig(dtype="bfloat16", device="cuda", arena_mib=128))
    steps = StepCounter()
    ticks = EventTicks(steps, parts.model_config.layers)
    pages = [parts.layout.blocks_per_slab * (2 + page) for page in range(4)]
    batch = Batch.pack([SequenceSlice([5] * 200, 0, pages, 0, 1)])
    for forwards in (1, 2, 3):
        parts.model.forward(batch, parts.arena, ticks)
        assert ticks.launched == forwards * parts.model_config.layers
        assert steps.wait_for(ticks.launched, 10.0)
        assert steps.value == ticks.launched
        until(lambda: steps.end_of(ticks.launched) < math.inf, "the forward's end is not told")
