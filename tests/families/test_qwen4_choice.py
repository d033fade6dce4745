"""The choice of blocks and the hash: exact rules, compared with plain loops."""

import random
from collections.abc import Callable

import pytest
import torch

from tasuki.model.families.qwen4_exp.reference import Naive
from tasuki.model.families.qwen4_exp.sparse import attention
from tasuki.model.families.qwen4_exp.sparse.choice import Extent, best_blocks, block_scores
from tasuki.model.families.qwen4_exp.table.rows import context_ids, primes_from, row_ids
from tasuki.model.forward import LayerHooks
from tests.harness.qwen4_models import OwnSequence, odd_config, odd_raw, random_model


def by_rule(scores: list[float], count: int) -> list[bool]:
    ranked = sorted(range(len(scores)), key=lambda block: (-scores[block], block))
    return [block in ranked[:count] for block in range(len(scores))]


@pytest.mark.parametrize("levels", [1, 2, 5])
def test_equal_scores_go_to_the_lower_block(levels: int) -> None:
    random.seed(levels)
    for blocks in (1, 3, 8, 40):
        scores = [[random.randrange(levels) / 2 for _ in range(blocks)] for _ in range(12)]
        visible = torch.tensor([random.randint(0, blocks) for _ in scores])
        chosen = best_blocks(torch.tensor(scores), visible, 4)
        for row, own, seen in zip(chosen.tolist(), scores, visible.tolist(), strict=True):
            assert row[:seen] == by_rule(own[:seen], 4)
            assert not any(row[seen:])


def test_unwritten_keys_are_never_chosen() -> None:
    scores = torch.tensor([[0.0, torch.nan, torch.nan], [1.0, 2.0, torch.nan]])
    chosen = best_blocks(scores, torch.tensor([1, 2]), 1)
    assert chosen.tolist() == [[True, False, False], [False, True, False]]


def test_a_score_has_the_same_bits_alone_and_among_others() -> None:
    generator = torch.Generator().manual_seed(1)
    queries = torch.randn(33, 3, 40, generator=generator)
    # The same keys again are ties, wherever they stand.
    keys = torch.randn(19, 40, generator=generator).repeat(2, 1)
    together = block_scores(queries, keys)
    assert torch.equal(together[:, :19], together[:, 19:])
    for row in range(33):
        for block in (0, 7, 18):
            alone = block_scores(queries[row : row + 1], keys[block : block + 1])
            assert torch.equal(alone[0, 0], together[row, block])
    assert (together == 0).any()


@pytest.mark.parametrize("first", [0, 1])
def test_a_page_has_the_rows_of_the_blocks_that_end_in_it(first: int) -> None:
    extent = Extent(first, 4, 8)
    for block in range(50):
        last = first + 4 * block + 3
        assert extent.row(block) // extent.page_rows == last // 64
        assert extent.whole_blocks(last) == block
        assert extent.whole_blocks(last + 1) == block + 1


def test_primes_follow_each_other() -> None:
    assert primes_from(1, 6) == [2, 3, 5, 7, 11, 13]
    assert primes_from(20_000_000, 2) == [20_000_003, 20_000_023]


def test_rows_of_a_table_end_at_the_end_of_text() -> None:
    model = random_model(odd_raw())
    naive = Naive(model.config, model.weights)
    random.seed(4)
    tokens = [random.choice((5, 5, 7, 8, 96)) for _ in range(80)]
    for table in model.config.tables:
        expected = [naive._row_ids(tokens[: at + 1], table) for at in range(len(tokens))]
        for begin in (0, 1, 2, 3, 40):
            before = context_ids(tokens[:begin], table, 5)
            own = row_ids(torch.tensor(tokens[begin:]), before, 5, table)
            assert own.tolist() == expected[begin:]
            assert 0 <= int(own.min()) <= int(own.max()) < table.rows


def test_a_hash_reads_no_more_ids_than_it_asks_for() -> None:
    (table, _) = odd_config(odd_raw()).tables
    assert context_ids([9, 8, 7, 6, 1], table, 5).tolist() == [7, 6, 1]
    assert context_ids([1], table, 5).tolist() == [5, 5, 1]


def higher_blocks(scores: torch.Tensor, visible: torch.Tensor, count: int) -> torch.Tensor:
    """Choose as best_blocks() does, but the higher block among equal scores."""
    flipped = torch.where(torch.arange(scores.shape[1]) < visible[:, None], scores, -1.0).flip(1)
    return best_blocks(flipped, torch.full_like(visible, scores.shape[1]), count).flip(1)


class LastStreams(LayerHooks):
    """Keeps the streams after the model's last layer."""

    streams: torch.Tensor

    def after_layer(self, layer: int, stream: Callable[[], torch.Tensor]) -> None:
        self.streams = stream()


def test_repeated_tokens_are_chosen_by_the_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    model = random_model(odd_raw(indexer_n_heads=1))
    random.seed(8)
    tokens = [9] * 30 + [random.choice((9, 11, 12)) for _ in range(110)]
    expected = Naive(model.config, model.weights).forward(tokens).streams[-1]

    def off(chunk: int) -> float:
        sequence, found = OwnSequence(model), []
        for begin in range(0, len(tokens), chunk):
            watch = LastStreams()
            sequence.forward(tokens[begin : begin + chunk], hooks=watch)
            found.append(watch.streams)
        return float((torch.cat(found) - expected).abs().max())

    assert max(off(1000), off(37), off(1)) < 1e-3
    monkeypatch.setattr(attention, "best_blocks", higher_blocks)
    assert off(1000) > 1e-2, "no tie decides anything here"
