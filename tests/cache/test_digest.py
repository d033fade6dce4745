"""The compiled digest of rows equals its numpy reference with every instruction set, and rejects
rows outside its memory."""

import re
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.pycache._cpp_cache import RowDigester, digest_instructions
from tasuki.pycache.layout import Span
from tasuki.transfer.chunks.chunk import ChunkHeader
from tasuki.transfer.chunks.digest import (
    ArenaChunk,
    ChunkDigester,
    ChunkRows,
    chunk_geometry,
    word_keys,
)
from tests.harness.loopback_pair import DRAFT, FULL, GDN, small_layout
from tests.harness.segments_twin import chunk_segments, row_table, rows_by_numpy

from .numpy_digest import numpy_digest

WORDS = 3_000
LONGEST = 200
TINY = small_layout((GDN, GDN, GDN, FULL, GDN, FULL, DRAFT), kv_heads=2)
MEMORY = np.random.default_rng(1).integers(0, 256, 8 * WORDS, dtype=np.uint8)


def columns(rows: list[tuple[int, int, int]]) -> ChunkRows:
    table = np.array(rows, dtype=np.int64).reshape(-1, 3)
    return ChunkRows(*(np.ascontiguousarray(column) for column in table.T))


@st.composite
def runs_of_rows(draw: st.DrawFn) -> ChunkRows:
    """Draw rows: runs of one length, as blocks of a layer are, at any offsets."""
    rows = []
    for _ in range(draw(st.integers(0, 5))):
        length = draw(st.integers(0, LONGEST))
        offsets = draw(st.lists(st.integers(0, WORDS - length), min_size=1, max_size=9))
        seeds = st.integers(-(2**63), 2**63 - 1)
        rows += [(offset, length, draw(seeds)) for offset in offsets]
    return columns(rows)


@given(rows=runs_of_rows())
def test_it_equals_its_twin_by_all_instructions(rows: ChunkRows) -> None:
    expected = numpy_digest(MEMORY, rows)
    for name in digest_instructions():
        digester = RowDigester(MEMORY, LONGEST, name)
        assert digester.instructions == name
        assert digester.digest(rows.offsets, rows.lengths, rows.seeds) == expected


def test_the_fastest_instructions_are_the_default() -> None:
    assert digest_instructions()[0] == "scalar"
    assert RowDigester(MEMORY, LONGEST).instructions == digest_instructions()[-1]
    with pytest.raises(ValueError, match="abacus"):
        RowDigester(MEMORY, LONGEST, "abacus")


@pytest.mark.parametrize(
    "row", [(WORDS, 1), (WORDS - 1, 2), (-1, 1), (0, -1), (0, LONGEST + 1), (2**63 - 1, 1)]
)
def test_a_row_outside_is_named(row: tuple[int, int]) -> None:
    rows = columns([(0, 1, 0), (*row, 0)])
    with pytest.raises(IndexError, match="row 1"):
        RowDigester(MEMORY, LONGEST).digest(rows.offsets, rows.lengths, rows.seeds)


def test_columns_and_memory_must_fit() -> None:
    digester = RowDigester(MEMORY, LONGEST)
    one, two = np.zeros(1, dtype=np.int64), np.zeros(2, dtype=np.int64)
    with pytest.raises(ValueError, match="one seed"):
        digester.digest(one, one, two)
    with pytest.raises(ValueError, match="dimension"):
        digester.digest(one, one, np.zeros((1, 1), dtype=np.int64))
    with pytest.raises(ValueError, match="whole number"):
        RowDigester(MEMORY[:12], LONGEST)
    wrong: list[Any] = [one.astype(np.int32), np.zeros(4, dtype=np.int64)[::2], [0]]
    for column in wrong:
        with pytest.raises(TypeError):
            digester.digest(column, one, one)


def test_it_keeps_its_memory_and_holds_no_lock() -> None:
    digester = RowDigester(MEMORY.copy(), LONGEST)
    rows = columns([(5, 100, 1)] * 50)
    expected = numpy_digest(MEMORY, rows)
    found: list[int] = []

    def take() -> None:
        found.extend(digester.digest(rows.offsets, rows.lengths, rows.seeds) for _ in range(200))

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == {expected} and len(found) == 600


def test_every_set_of_instructions_that_the_cpu_has_is_there() -> None:
    found = re.search(r"^flags\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    flags = set() if found is None else set(found[1].split())
    wanted = ["scalar"]
    if "avx2" in flags:
        wanted.append("avx2")
    if {"avx512f", "avx512dq"} <= flags:
        wanted.append("avx512")
    assert list(digest_instructions()) == wanted


def test_rows_without_words_have_a_digest_too() -> None:
    """A layout without states has a longest state of none."""
    rows = columns([(0, 0, 5), (WORDS, 0, 6)])
    for name in digest_instructions():
        digester = RowDigester(MEMORY, 0, name)
        found = digester.digest(rows.offsets, rows.lengths, rows.seeds)
        assert found == numpy_digest(MEMORY, rows)
    with pytest.raises(ValueError, match="cannot be negative"):
        RowDigester(MEMORY, -1)


def test_there_are_as_many_keys_as_words_and_all_are_odd() -> None:
    keys = word_keys(LONGEST)
    assert len(keys) == len(set(keys.tolist())) == LONGEST
    assert all(key % 2 for key in keys.tolist())


SLABS = 3
PAGES = [p for p in range(SLABS * TINY.blocks_per_slab) if TINY.valid_page(p, SLABS)]
LARGE = st.integers(0, 2**63 - 1)


@st.composite
def chunks(draw: st.DrawFn) -> ArenaChunk:
    """Draw a layer chunk of TINY with any layers, pages and state, also with none."""
    layers = len(TINY.layers)
    first, end = sorted(draw(st.tuples(*[st.integers(0, layers)] * 2)))
    pages = tuple(draw(st.lists(st.sampled_from(PAGES), max_size=6)))
    slot = draw(st.none() | st.integers(0, SLABS - 1))
    first_page = draw(st.integers(0, 2**32 - 1))
    header = ChunkHeader(0, first, end, first_page, len(pages), slot is not None)
    return ArenaChunk(draw(LARGE), draw(LARGE), header, pages, slot)


@given(data=st.data(), asked=st.lists(chunks(), max_size=5))
def test_windows_are_digested_as_their_rows_are(
    data: st.DataObject, asked: list[ArenaChunk]
) -> None:
    """All are digested in one compiled call, or their rows are made in one. The reference makes
    rows by numpy."""
    head = data.draw(st.sampled_from([TINY.block_bytes // 2, TINY.block_bytes // 4]))
    shorter = data.draw(st.booleans())
    sizes = SimpleNamespace(
        block_rows=lambda layer: (Span(0, head), Span(head, head)),
        state_length=lambda layer: 64 if shorter else TINY.state_length(layer),
    )
    memory = np.random.default_rng(2).integers(0, 256, SLABS * TINY.slab_bytes, dtype=np.uint8)
    digester = ChunkDigester(memory, TINY, sizes)
    rows = [
        rows_by_numpy(TINY, w.transfer_id, w.generation, w.header, w.pages, w.slot, sizes)
        for w in asked
    ]
    expected = [digester.digest_rows(each) for each in rows]
    assert digester.digest_all(asked) == expected
    # Windows and rows may be mixed; each keeps its place.
    mixed = [pair[at % 2] for at, pair in enumerate(zip(asked, rows, strict=True))]
    assert digester.digest_each(mixed) == expected
    count, table = chunk_geometry(TINY, sizes).rows([chunk.places for chunk in asked])
    assert count == sum(len(each.offsets) for each in rows) and table.flags.c_contiguous
    assert np.array_equal(table, row_table(rows)) and table.shape[1] % 2 == 0
    assert table.shape[1] >= len(asked), "a window without rows has a place for its digest too"


@given(chunk=chunks(), data=st.data())
def test_pieces_of_a_window_are_those_of_the_twin(chunk: ArenaChunk, data: st.DataObject) -> None:
    header, pages = chunk.header, chunk.pages
    places = st.lists(st.sampled_from(PAGES), min_size=len(pages), max_size=len(pages))
    there = tuple(data.draw(places))
    if data.draw(st.booleans()):
        # Most real ids are runs of neighbours.
        pages = there = tuple(sorted(there))
    slots = None if chunk.slot is None else (chunk.slot, data.draw(st.integers(0, SLABS - 1)))
    here_slot, there_slot = slots or (None, None)
    expected = chunk_segments(TINY, header, pages, there, here_slot, there_slot)
    layers = header.first_layer, header.end_layer
    found = chunk_geometry(TINY).pieces(*layers, (pages, there), slots)
    assert found.dtype == np.int64 and np.array_equal(found, expected)


def test_pieces_of_what_is_no_window_are_refused() -> None:
    geometry = chunk_geometry(TINY)
    with pytest.raises(IndexError, match="layers"):
        geometry.pieces(0, len(TINY.layers) + 1, ((), ()), None)
    with pytest.raises(ValueError, match="2 pages go to 1"):
        geometry.pieces(0, 1, ((0, 1), (0,)), None)


def test_a_window_outside_the_arena_is_refused() -> None:
    digester = ChunkDigester(np.zeros(TINY.slab_bytes, dtype=np.uint8), TINY)
    layers = len(TINY.layers)
    for header in (ChunkHeader(0, 0, layers + 1, 0, 0, False), ChunkHeader(0, 0, 99, 0, 1, True)):
        with pytest.raises(IndexError, match="layers"):
            digester.digest_all([ArenaChunk(1, 1, header, (), None)])
    inside = ChunkHeader(0, 0, layers, 0, 1, True)
    for pages, slot in (((TINY.blocks_per_slab,), 0), ((0,), 1)):
        with pytest.raises(IndexError, match="row"):
            digester.digest_all([ArenaChunk(1, 1, inside, pages, slot)])


def test_no_row_of_a_window_is_longer_than_the_arenas_longest_unit() -> None:
    digester = ChunkDigester(np.zeros(TINY.slab_bytes, dtype=np.uint8), TINY)
    longest = TINY.longest_row // 8
    digester.digest_rows(columns([(0, longest, 0)]))
    with pytest.raises(IndexError, match="row 0"):
        digester.digest_rows(columns([(0, longest + 1, 0)]))
