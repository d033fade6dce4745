"""Steps, layer chunks, descriptors, digests, contract, rendezvous: each compared with a naive
reference or at its limits."""

import math
import threading
import time
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.transfer.chunks.chunk import (
    ChunkHeader,
    Destination,
    FinishedLayers,
    StepCounter,
    code_of,
    cut,
)
from tasuki.transfer.chunks.descriptors import (
    check_bounds,
    layer_bytes,
    merge_segments,
)
from tasuki.transfer.chunks.digest import ArenaChunk, ChunkDigester, splitmix64, word_keys
from tasuki.transfer.control.link_status import NodeProgress, PrefillNodeState, PrefillNodeStatus
from tasuki.transfer.errors import ChunkPlanError, OutOfBounds
from tasuki.transfer.protocol.contract import Contract, ContractMismatch, Difference
from tasuki.transfer.reports import ChunkTiming, split_time
from tasuki.transfer.sending.chunk_sizing import fixed_runs
from tests.harness.loopback_pair import DRAFT, FULL, GDN, small_layout
from tests.harness.segments_twin import chunk_segments, merge_runs
from tests.harness.waiting import HANG_SECONDS


def test_steps_wake_waiters_and_remember_times() -> None:
    steps, heard = StepCounter(), []
    assert steps.wait_for(0, timeout=0)
    assert not steps.wait_for(1, timeout=0.01)
    waiter = threading.Thread(target=lambda: heard.append(steps.wait_for(2, timeout=HANG_SECONDS)))
    waiter.start()
    times = [time.monotonic()]
    for _ in range(2):
        steps.tick()
        times.append(time.monotonic())
    waiter.join()
    assert heard == [True]
    first, second = steps.times_of(1, 3)
    assert first is not None and second is not None
    assert times[0] <= first <= times[1] <= second <= times[2]
    assert steps.time_of(0) is None and steps.time_of(3) is None


@given(layers=st.integers(1, 12), size=st.integers(1, 13), tick=st.integers(0, 99))
def test_windows_cover_every_layer_once_in_order(layers: int, size: int, tick: int) -> None:
    chunks = cut(FinishedLayers(tick, 3, (8, 9), None), fixed_runs(layers, size), first_sequence=5)
    covered = [layer for w in chunks for layer in range(w.header.first_layer, w.header.end_layer)]
    assert covered == list(range(layers))
    assert [w.header.sequence for w in chunks] == list(range(5, 5 + len(chunks)))
    assert [w.tick for w in chunks] == [tick + w.header.end_layer for w in chunks]


def test_windows_of_no_layers_are_refused() -> None:
    with pytest.raises(ChunkPlanError, match="layers_per_window"):
        fixed_runs(4, 0)


@given(
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.builds(
        ChunkHeader,
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**16 - 1),
        st.integers(0, 2**32 - 1),
        st.integers(0, 2**32 - 1),
        st.booleans(),
    ),
)
def test_headers_survive_the_wire(transfer_id: int, generation: int, header: ChunkHeader) -> None:
    assert ChunkHeader.unpack(header.pack(transfer_id, generation)) == (
        transfer_id,
        generation,
        header,
    )


def test_pieces_go_past_two_gigabytes() -> None:
    layout = small_layout(head_dim=4096, kv_heads=8)
    header = ChunkHeader(0, 3, 4, 0, 1, False)
    page = 5 * layout.blocks_per_slab
    segments = chunk_segments(layout, header, [page], [page], None, 0)
    assert segments.dtype == np.int64
    assert segments[0, 0] == page * layout.block_bytes > 2**27
    far = chunk_segments(layout, header, [page * 1000], [page], None, 0)
    assert far[0, 0] == 1000 * page * layout.block_bytes > 2**32


def test_a_layer_sends_its_pages_or_its_state() -> None:
    layout = small_layout()
    full, gdn = layout.regions[0].layer, layout.columns[0].layer
    for carries in (False, True):
        assert layer_bytes(layout, full, 3, carries) == 3 * layout.block_bytes
    assert layer_bytes(layout, gdn, 3, True) == layout.states[0].length
    assert layer_bytes(layout, gdn, 3, False) == 0
    drafting = small_layout((FULL, GDN, DRAFT))
    assert drafting.state_length(2) == 128
    for carries in (False, True):
        expected = 3 * drafting.block_bytes + carries * 128
        assert layer_bytes(drafting, 2, 3, carries) == expected


@pytest.mark.parametrize(
    "segment", [(-1, 0, 1), (0, -1, 1), (100, 0, 1), (0, 200, 1), (99, 0, 2), (0, 0, 0)]
)
def test_bounds_name_the_piece(segment: tuple[int, int, int]) -> None:
    # The shortest and the longest valid ones, at both ends.
    for fine in ((0, 0, 100), (0, 0, 1), (99, 199, 1)):
        check_bounds(np.array([fine]), 100, 200)
        with pytest.raises(OutOfBounds, match="segment 1"):
            check_bounds(np.array([fine, segment]), 100, 200)


DIGESTED = small_layout((GDN, GDN, GDN, FULL) * 2 + (DRAFT,), kv_heads=2, head_dim=2)


def naive_digest(
    memory: bytes,
    transfer_id: int,
    generation: int,
    header: ChunkHeader,
    pages: tuple[int, ...],
    slot: int | None,
) -> int:
    """Return the digest by its definition, a word at a time."""
    mask = 2**64 - 1
    layout = DIGESTED

    def mix(value: int) -> int:
        value = (value + 0x9E3779B97F4A7C15) & mask
        value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9 & mask
        value = (value ^ (value >> 27)) * 0x94D049BB133111EB & mask
        return value ^ (value >> 31)

    def block(offset: int, length: int) -> int:
        total = 0
        for index in range(length // 8):
            at = offset + 8 * index
            key = mix(index * 0x9E3779B97F4A7C15 & mask) | 1
            total += int.from_bytes(memory[at : at + 8], "little") * key
        return total & mask

    digest = 0
    for layer in range(header.first_layer, header.end_layer):
        seed = mix(mix(mix(transfer_id) ^ generation) ^ layer)
        cache = layout.layers[layer]
        if cache.page:
            for index, page in enumerate(pages):
                span = layout.page_span(layer, page)
                share = span.length // cache.heads
                for head in range(cache.heads):
                    value = block(span.offset + head * share, share)
                    place = (header.first_page + index) | head << 33
                    digest += mix(mix(seed ^ place) ^ value)
        if cache.slot and slot is not None:
            span = layout.state_span(layer, slot)
            digest += mix(mix(seed ^ 2**32) ^ block(span.offset, span.length))
    return digest & mask


def test_digest_equals_its_naive_twin_and_tells_place_room_and_generation() -> None:
    layout = DIGESTED
    memory = np.random.default_rng(0).integers(0, 256, 6 * layout.slab_bytes, dtype=np.uint8)
    digester, base = ChunkDigester(memory, layout), layout.blocks_per_slab
    assert layout.pages_per_slab >= 2
    a, b, c = 2 * base, 2 * base + 1, 4 * base
    header = ChunkHeader(0, 2, 5, 7, 3, True)
    chunks = [
        (9, 4, header, (a, b, c), 1),
        (9, 4, header, (b, a, c), 1),
        (9, 5, header, (a, b, c), 1),
        (8, 4, header, (a, b, c), 1),
        (9, 4, header, (a, b, c), 3),
        (9, 4, replace(header, first_page=8), (a, b, c), 1),
        (9, 4, replace(header, first_layer=1), (a, b, c), 1),
        (9, 4, replace(header, first_layer=0, end_layer=9), (a, b, c), 1),
        (9, 4, replace(header, first_layer=8, end_layer=9), (a, b, c), 1),
        (9, 4, replace(header, first_layer=8, end_layer=9, carries_state=False), (a,), None),
    ]
    digests = digester.digest_all([ArenaChunk(*chunk) for chunk in chunks])
    assert digests == [naive_digest(memory.tobytes(), *chunk) for chunk in chunks]
    assert len(set(digests)) == len(chunks)


def test_digest_is_fast_enough_to_be_on_by_default() -> None:
    layout = small_layout(kv_heads=4, head_dim=128)
    slabs = 64 * 2**20 // layout.slab_bytes
    memory = np.ones(slabs * layout.slab_bytes, dtype=np.uint8)
    digester = ChunkDigester(memory, layout)
    pages = [
        slab * layout.blocks_per_slab + k
        for slab in range(slabs)
        for k in range(layout.pages_per_slab)
    ]
    header = ChunkHeader(0, 0, len(layout.layers), 0, len(pages), False)
    best = float("inf")
    for _ in range(5):
        started = time.thread_time()
        digester.digest_all([ArenaChunk(1, 1, header, tuple(pages), None)])
        best = min(best, time.thread_time() - started)
    # An order of magnitude below an idle core's speed, since the machine may be busy.
    assert len(pages) * layout.page_bytes / best > 0.3e9


def test_time_is_split_at_the_forwards_end_and_overlaps_count_once() -> None:
    hidden, exposed = split_time(
        [
            ChunkTiming(0, (1.0,), begun=1.0, posted=1.0, flushed=3.0, bytes=8),
            ChunkTiming(1, (1.5, 2.0), begun=2.0, posted=2.5, flushed=4.0, bytes=8),
            ChunkTiming(2, (6.0,), begun=6.5, posted=6.5, flushed=7.0, bytes=8),
        ],
        forward_end=6.0,
    )
    assert (hidden, exposed) == (3.0, 1.0)


@pytest.mark.parametrize(
    ("end", "split"), [(2.5, (0.5, 1.5)), (4.0, (2.0, 0.0)), (math.inf, (2.0, 0.0))]
)
def test_what_leaves_while_a_layers_rest_is_computed_is_hidden(
    end: float, split: tuple[float, float]
) -> None:
    chunk = ChunkTiming(0, (1.0,), begun=2.0, posted=2.0, flushed=4.0, bytes=8)
    assert split_time([chunk], end) == split


def test_a_forwards_end_is_known_once_it_is_told() -> None:
    steps = StepCounter()
    assert steps.end_of(1) == -math.inf, "nothing ticked"
    steps.tick()
    assert steps.end_of(1) == steps.time_of(1), "nobody tells of ends"
    times = [time.monotonic()]
    steps.end_forward()
    times.append(time.monotonic())
    steps.tick()
    assert times[0] <= steps.end_of(1) <= times[1] and steps.end_of(2) == math.inf
    steps.end_forward()
    assert steps.end_of(1) <= times[1] <= steps.end_of(2) < math.inf


def moved(segments: np.ndarray) -> list[tuple[int, int]]:
    """Return the source and target of each byte."""
    return [(a + i, b + i) for a, b, length in segments.tolist() for i in range(length)]


def assert_merged(segments: np.ndarray) -> None:
    assert segments.dtype == np.int64 and segments.shape[1] == 3
    for first, second in pairwise(segments):
        joined = first[0] + first[2] == second[0] and first[1] + first[2] == second[1]
        assert not joined, "two pieces that are one"


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(1, 5)), min_size=0, max_size=9
    )
)
def test_pieces_of_any_length_are_merged_where_they_touch_on_both_sides(
    gaps: list[tuple[int, int, int]],
) -> None:
    rows, local, remote = [], 0, 100
    for before, behind, length in gaps:
        local, remote = local + before, remote + behind
        rows.append((local, remote, length))
        local, remote = local + length, remote + length
    segments = np.array(rows, dtype=np.int64).reshape(-1, 3)
    given_segments = segments.copy()
    merged = merge_segments(segments)
    assert moved(merged) == moved(segments)
    assert_merged(merged)
    assert (segments == given_segments).all(), "the caller's own pieces were changed"


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=9))
def test_runs_of_blocks_are_merged_in_bytes(gaps: list[tuple[int, int]]) -> None:
    block = 7
    local = np.cumsum([block + block * gap for gap, _ in gaps], dtype=np.int64)
    remote = np.cumsum([block + block * gap for _, gap in gaps], dtype=np.int64)
    segments = merge_runs(local, remote, block)
    singles = np.array([(a, b, block) for a, b in zip(local, remote, strict=True)], dtype=np.int64)
    assert moved(segments) == moved(singles.reshape(-1, 3))
    assert_merged(segments)


def test_a_window_without_anything_to_send_has_no_pieces() -> None:
    layout = small_layout((GDN, FULL))
    nothing = ChunkHeader(0, 0, 1, 0, 0, False)
    for header in (nothing, replace(nothing, first_layer=1, end_layer=2)):
        assert chunk_segments(layout, header, [], [], None, 0).shape == (0, 3)
    check_bounds(np.empty((0, 3), dtype=np.int64), 100, 100)
    with pytest.raises(OutOfBounds, match="segment 0: remote bytes at 100 of length 1 are outside"):
        check_bounds(np.array([(0, 100, 1)]), 100, 100)


def test_the_code_of_a_notification_is_one_of_those_that_are_taken() -> None:
    header = ChunkHeader(0, 0, 1, 0, 1, True)
    for code, found in ((0, 0), (10, 10), (5, 0)):
        assert code_of(header.pack(1, 1, code), (0, 10)) == found
    assert code_of(b"", (10, 0)) == 10, "unpack() refuses it"


@pytest.mark.parametrize(
    ("fields", "advice"),
    [
        (("weights_digest", "kv_dtype"), "start both nodes with one version, checkpoint and wire"),
        (("ssm_dtype",), "give both nodes the same --ssm-dtype, a or b"),
        # Other dtypes follow a dtype, and the stored value is no flag's value.
        (("conv_dtype", "carry_dtype", "kv_dtype"), "give both nodes the same --dtype, a or b"),
        (("kv_dtype",), "give both nodes the same --kv-dtype"),
        (("wire_kv", "wire_state"), "give both nodes the same --wire-kv and --wire-state"),
        (("carry_width",), "start both nodes with one version, checkpoint and wire"),
    ],
)
def test_a_mismatch_says_what_mends_it(fields: tuple[str, ...], advice: str) -> None:
    differences = tuple(Difference(field, "a", "b") for field in fields)
    assert str(ContractMismatch(differences, Contract("w", small_layout()).flags)).endswith(
        f"; {advice}"
    )


def test_a_node_that_is_not_connected_tells_no_times() -> None:
    status = PrefillNodeStatus("10.0.0.1:1", None, PrefillNodeState.LOST)
    told = status.message()
    assert not told.HasField("engine_seconds") and not told.HasField("front_seconds")
    told = replace(status, progress=NodeProgress(2.0, 3.0)).message()
    assert (told.engine_seconds, told.front_seconds) == (2.0, 3.0)


@pytest.mark.parametrize(
    ("pages", "slot", "named"),
    [((1, 1), 3, "given twice"), ((0, 1), 0, "overlaps the slab"), ((0, 1), 1, None)],
)
def test_a_grant_gives_no_id_twice(pages: tuple[int, ...], slot: int, named: str | None) -> None:
    granted = Destination(0, pages, slot)
    if named is None:
        granted.check(small_layout(), 4)
        return
    with pytest.raises(OutOfBounds, match=named):
        granted.check(small_layout(), 4)


def test_keys_of_words_are_the_definitions() -> None:
    assert word_keys(3).tolist() == [
        splitmix64(index * 0x9E3779B97F4A7C15 % 2**64) | 1 for index in range(3)
    ]
