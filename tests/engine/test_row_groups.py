"""Plans of rows that share pages: every whole span of a row is in one unit or is its own, and equal
pages are read once for as many rows as a unit takes. Plans are kept while they hold."""

from collections import Counter, defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch

from tasuki.engine.config import EngineConfig, EngineConfigError
from tasuki.engine.forward_plan import Ints
from tasuki.engine.runner.row_groups import RowGroups
from tasuki.engine.runner.rows import ResolvedRows, SequencePages
from tasuki.model.attention_split import AttentionSplit
from tasuki.model.ops.attention.spans.groups import GroupPlan, SpanGroups
from tasuki.model.ops.attention.spans.rule import SPANS, SpanRule

RULE = SpanRule(least_pages=2, most_spans=6)


def ints(*values: int) -> Ints:
    return np.array(values, dtype=np.int32)


def random_rows(seed: int) -> tuple[list[Ints], Ints, Ints]:
    """Return page ids, lengths and keys seen first, of rows grown from a random tree."""
    random = np.random.default_rng(seed)
    pages: list[list[int]] = []
    fresh = iter(range(10_000))
    for _ in range(random.integers(1, 40)):
        parent = pages[random.integers(len(pages))] if pages and random.random() < 0.8 else []
        kept = parent[: random.integers(len(parent) + 1)]
        pages.append([*kept, *(next(fresh) for _ in range(random.integers(1, 9)))])
    lengths = ints(*(64 * len(own) - int(random.integers(64)) for own in pages))
    seen = np.maximum(lengths - random.integers(4, size=len(pages)), 1).astype(np.int32)
    return [ints(*own) for own in pages], lengths, seen


@pytest.mark.parametrize("most_rows", [1, 2, 4])
@pytest.mark.parametrize("seed", range(12))
def test_a_plan_reads_pages_as_seldom_as_its_units_allow(seed: int, most_rows: int) -> None:
    pages, lengths, seen = random_rows(seed)
    plan = GroupPlan.of(pages, lengths, seen, RULE, most_rows)
    assert sorted(plan.order.tolist()) == list(range(len(pages)))
    sizes, whole = RULE.pages(lengths), RULE.whole(lengths, seen)
    read = Counter[tuple[int, ...]]()
    met: dict[int, list[int]] = defaultdict(list)
    for place, rows, span in plan.units.tolist():
        assert 1 <= rows <= most_rows
        own = plan.order[place : place + rows].tolist()
        size = sizes[own[0]]
        texts = {(size, *pages[row][: (span + 1) * size].tolist()) for row in own}
        assert len(texts) == 1
        read.update(texts)
        for row in own:
            assert span < whole[row] and sizes[row] == size
            met[row].append(span)
    for place, row in enumerate(plan.order.tolist()):
        assert sorted(met[row]) == list(range(plan.covered[place]))
    holders = Counter(
        (sizes[row], *ids[: (span + 1) * sizes[row]].tolist())
        for row, ids in enumerate(pages)
        for span in range(whole[row])
    )
    shared = {text: count for text, count in holders.items() if count > 1 and most_rows > 1}
    assert read == {text: -(-count // most_rows) for text, count in shared.items()}


def test_spans_are_asked_for_and_of_a_gpu() -> None:
    assert EngineConfig(device="cuda").divided_keys is AttentionSplit.SHARES
    assert EngineConfig(device="cuda", attention_split="spans").divided_keys is AttentionSplit.SPANS
    with pytest.raises(EngineConfigError, match="attention_split is spans, and a CPU"):
        EngineConfig(attention_split="spans")


def test_spans_depend_on_the_rows_own_length() -> None:
    lengths = ints(1, 64 * 12, 64 * 12 + 1, 64 * 18)
    assert RULE.pages(lengths).tolist() == [2, 2, 3, 3]
    assert RULE.whole(lengths, lengths - 1).tolist() == [0, 5, 4, 5]
    every = np.arange(1, 2**20, 997, dtype=np.int32)
    spans = -(-every // (SPANS.pages(every) * 64))
    assert spans.max() == SPANS.most_spans


def rows_of(lengths: Ints) -> ResolvedRows:
    """Return rows of one token each."""
    numbers = np.arange(len(lengths), dtype=np.int32)
    found = ResolvedRows(*([numbers] * 12))  # type: ignore[arg-type]
    return replace(found, starts=lengths - 1, lengths=np.ones_like(lengths))


def sequences_of(*pages: Ints) -> list[SequencePages]:
    found = [SequencePages() for _ in pages]
    for sequence, own in zip(found, pages, strict=True):
        sequence.grow(own)
    return found


def test_a_plan_is_kept_until_rows_or_their_spans_change() -> None:
    groups = SpanGroups.empty(3, RULE, 4, torch.device("cpu"))
    kept = RowGroups(groups)
    sequences = sequences_of(ints(1, 2, 3), ints(1, 2, 4), ints(5, 6, 7))
    kept.seat(sequences, rows_of(ints(150, 190, 150)))
    assert groups.count.tolist() == [1]
    assert groups.order.tolist() == [0, 1, 2]
    assert groups.covered.tolist() == [1, 1, 0]
    assert groups.units[:1].tolist() == [[0, 2, 0]]
    groups.count.fill_(77)
    for sequence, own in zip(sequences, (8, 9, 10), strict=True):
        sequence.grow(ints(own))
    kept.seat(sequences, rows_of(ints(151, 193, 151)))
    assert groups.count.tolist() == [77]
    kept.seat([sequences[2], *sequences[:2]], rows_of(ints(151, 151, 193)))
    assert groups.order.tolist() == [1, 2, 0]
    assert groups.count.tolist() == [1]
    kept.seat(sequences[:1], rows_of(ints(152)))
    assert groups.count.tolist() == [0]
    assert groups.covered.tolist() == [0, 0, 0]


def test_a_row_whose_spans_grow_longer_leaves_its_group() -> None:
    groups = SpanGroups.empty(2, RULE, 4, torch.device("cpu"))
    kept = RowGroups(groups)
    common = np.arange(11, dtype=np.int32)
    sequences = sequences_of(np.append(common, ints(20)), np.append(common, ints(21)))
    kept.seat(sequences, rows_of(ints(64 * 12, 64 * 11 + 5)))
    assert groups.covered.tolist() == [5, 5]
    sequences[0].grow(ints(22))
    kept.seat(sequences, rows_of(ints(64 * 12 + 1, 64 * 11 + 6)))
    assert groups.covered.tolist() == [0, 0]
